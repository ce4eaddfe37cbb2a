"""Tables of what became of models."""

from graphcircuits.corpus.language.report import does, markdown

LEARNED = {
    "model": "gpt2-2x64-chars",
    "layers": 2,
    "heads": 4,
    "width": 64,
    "parameters": 122752,
    "loss": 1.25,
    "bits_per_character": 1.8034,
    "bigram_loss": 2.5,
    "problem": None,
    "tasks": {"quotes": 1.0, "verbs": 0.8, "types": 0.79},
}
FAILED = {
    **{name: value for name, value in LEARNED.items() if name != "tasks"},
    "model": "neox-2x64-chars",
    "loss": None,
    "bits_per_character": None,
    "problem": "its loss is not finite",
}


def test_what_a_model_does() -> None:
    assert does(LEARNED) == ["quotes", "verbs"]
    assert does(FAILED) == []


def test_tables() -> None:
    lines = markdown([LEARNED, FAILED], "graphcircuits language models").splitlines()
    assert lines[0] == "By `graphcircuits language models`."
    assert "| gpt2-2x64-chars | 2 | 4 | 64 | 122,752 | 1.250 | 1.803 | 2.500 |" in lines
    assert "| neox-2x64-chars | 2 | 4 | 64 | 122,752 | - | - | 2.500 |" in lines
    assert "- `neox-2x64-chars` did not learn: its loss is not finite." in lines
    assert lines[-5] == "| task | gpt2-2x64-chars | neox-2x64-chars |"
    assert lines[-3:] == ["| `quotes` | 100% |  |", "| `verbs` | 80% |  |", "| `types` | 79% |  |"]
    assert "task" not in markdown([FAILED], "")
