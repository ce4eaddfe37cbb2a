"""Everything that the tutorial and the how-to pages tell their reader to do works."""

import sys
from pathlib import Path

import pytest

from tests.pages import Ran, blocks_of, commands_of, run_page
from tests.shell import Command, Ended

DOCS = Path(__file__).parent.parent / "docs"
ALONE_NAMES = ("index.md", "tutorial.md", "rasp.md", "planted-language-models.md")
ALONE = [DOCS / name for name in ALONE_NAMES]
PAGES = [*ALONE, *sorted((DOCS / "howto").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.usefixtures("small_gpt2")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_can_be_done(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    try:
        ran = run_page(page, tmp_path, command)
    finally:
        for name in set(sys.modules) & {"my", "mine"} - before:
            del sys.modules[name]
    assert (ran.claims + ran.commands > 0) == (page != DOCS / "howto" / "index.md")


def test_the_howto_pages_are_all_listed() -> None:
    listed = (DOCS / "howto" / "index.md").read_text("utf-8")
    names = [page.name for page in PAGES if page.parent.name == "howto" and page.stem != "index"]
    assert len(names) >= 9
    assert [name for name in names if f"]({name})" not in listed] == []


def test_a_howto_page_states_its_task_and_what_can_go_wrong() -> None:
    for page in (DOCS / "howto").glob("[!i]*.md"):
        text = page.read_text("utf-8")
        assert "\n**Task.** " in text.split("##")[0], page
        assert "\n## What can go wrong\n" in text, page


PAGE = """
```toml title="mine.toml"
steps = 1
```

```sh
graphcircuits one \\
    --two  # a remark
```

```text
took 0.5 s
```

```sh title="needs a GPU"
graphcircuits never
```

```python
from pathlib import Path

Path("mine.toml").read_text()  # -> "steps = 1\\n"
```
"""


def told(*words: str | Path) -> Ended:
    assert words == ("one", "--two")
    return Ended(0, "took 12 s\n", "")


def test_pages_are_run_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    assert run_page(page, tmp_path, told) == Ran(claims=1, commands=1, lines=1)
    page.write_text(PAGE.replace("took", "gave"), "utf-8")
    with pytest.raises(AssertionError, match="gave"):
        run_page(page, tmp_path, told)
    page.write_text(PAGE.replace("graphcircuits one", "pip install one"), "utf-8")
    with pytest.raises(AssertionError, match="say in a title what it needs"):
        run_page(page, tmp_path, told)
    page.write_text(PAGE, "utf-8")
    with pytest.raises(AssertionError, match="took"):
        run_page(page, tmp_path, lambda *_: Ended(1, "", "took too long"))


def test_commands_end_where_lines_end() -> None:
    [_, block, *_] = blocks_of(PAGE)
    assert commands_of(block) == [["graphcircuits", "one", "--two"]]
