"""`python -m lab.cost`: its numbers are those of the package, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graphcircuits.methods import METHODS, localize
from graphcircuits.predictor.ensemble import Ensemble, save_ensemble
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.subject.files import save_transformer
from graphcircuits.task.pairs import Pairs
from lab.cost.__main__ import ABOUT, HEADER, app
from lab.cost.cost import count
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def own_subject(folder: Path) -> tuple[Path, Path]:
    """Files of a small subject and of its prompts, whose target is the clean run."""
    path, prompts = folder / "mine.safetensors", folder / "pairs.csv"
    save_transformer(path, make_subject(n_heads=2))
    prompts.write_text("clean,corrupted\n0 2 3 4,1 3 3 4\n4 2 2 0,3 2 1 1\n")
    return path, prompts


@pytest.mark.slow
def test_json_holds_the_counts(tmp_path: Path) -> None:
    path, prompts = own_subject(tmp_path)
    methods = ["--methods", "exact, eap-ig", "--option", "eap-ig.steps=3"]
    done = run(path, prompts, *methods, "--json")
    assert done.exit_code == 0, done.output
    (record,) = json.loads(done.stdout)
    about = {name: record[name] for name in ("subject", "layers", "edges", "pairs", "tokens")}
    assert about == {"subject": "mine", "layers": 2, "edges": 46, "pairs": 2, "tokens": 4}
    exact, eap_ig = record["methods"]
    assert (exact["method"], eap_ig["method"]) == ("exact", "eap-ig")
    expected = count(
        # Its runs, of which it tells, wait for nothing and are no steps.
        lambda subject, pairs, step: localize(subject, pairs, "exact", keep_prompts=0),
        make_subject(n_heads=2),
        Pairs.load(prompts),
    )
    assert exact["counts"] == vars(expected)
    assert exact["counts"]["steps"] == 0
    assert exact["seconds"] > 0
    assert eap_ig["options"]["steps"] == 3
    assert eap_ig["counts"]["backwards"] == 3


def test_table_and_markdown_of_several_cases(tmp_path: Path) -> None:
    page = tmp_path / "new" / "costs.md"
    given = ["ib-3,ib-15", "--draw", "2", "--methods", "random", "--markdown", page]
    done = run(*given)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    titles = [line for line in lines if "edges" in line]
    assert [title.split(":")[0] for title in titles] == ["ib-3", "ib-15"]
    assert "2 layers x 4 heads" in titles[0]
    assert "110 edges, 2 pairs of 5 tokens" in titles[0]
    assert "262 edges" in titles[1]
    rows = [line.split() for line in lines if line.startswith("random")]
    assert [row[1:6] for row in rows] == [["2", "0", "0", "0", "13"], ["2", "0", "0", "0", "19"]]
    assert lines[-1] == f"wrote {page}"
    text = page.read_text()
    assert text.count(f"| {' | '.join(HEADER)} |") == 2
    assert text.count("\n| random | 2 | 0 | ") == 2
    assert ABOUT in text
    assert "Made with `python -m lab.cost" in text


def test_a_method_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    path, prompts = own_subject(tmp_path)
    page = tmp_path / "costs.md"
    # The loss is the distance to the clean run, and a predictor that reads its gradient there.
    clean = tmp_path / "clean.safetensors"
    config = PredictorConfig(width=8, layers=1, share=1.0, prior=False)
    save_ensemble(clean, Ensemble((Predictor(config),), {}))
    given = ["--methods", "gcl,random", "--option", f"gcl.predictor={clean}", "--markdown", page]
    done = run(path, prompts, *given)
    assert done.exit_code == 1
    told = f"failed: gcl on mine: the predictor '{clean}' reads the gradient"
    assert told in done.stderr.replace("\n", "")
    assert [line for line in done.stdout.splitlines() if line.startswith("random")]
    assert f"- {told}" in page.read_text()


def test_a_case_with_pairs_of_your_own(tmp_path: Path) -> None:
    prompts = tmp_path / "pairs.csv"
    prompts.write_text("clean,corrupted\n5 5 5 5 5 5 5 5,0 0 0 0 0 0 0 0\n")
    done = run("tb-pairwise-max", prompts, "--words", "--methods", "random", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["pairs"] == 1


@pytest.mark.slow
def test_all_methods_are_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, prompts = own_subject(tmp_path)
    few = {name: METHODS[name] for name in ("exact", "random")}
    monkeypatch.setattr("graphcircuits.methods.METHODS", few)
    done = run(path, prompts, "--json")
    assert [row["method"] for row in json.loads(done.stdout)[0]["methods"]] == list(few)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["ib-3", "--methods", "eapig"], "unknown method 'eapig'; did you mean 'eap-ig'?"),
        (["ib-3", "--option", "steps=3"], "METHOD.NAME=VALUE, got 'steps=3'"),
        (
            ["ib-3", "--methods", "eap", "--option", "eap-ig.steps=3"],
            "options are given for methods that do not run: eap-ig.",
        ),
        (["ib-1300"], "unknown case 'ib-1300'"),
        (["ib-3", "--draw", "0", "--seed", "-1"], "--draw must be in 1..1000000, got 0; --seed mu"),
        (["ib-3", "--methods", "eap,eap"], "--methods names eap twice."),
        (["ib-3", "--option", "eap.pool=1", "--words"], "--words goes with a file of prompts"),
        (
            ["ib-3", "--option", "eap-ig.steps=x"],
            "--option eap-ig.steps=x: steps of eap-ig must be a whole number.",
        ),
        (["ib-3", "--markdown", "/"], "--markdown must be a file, but / is a folder."),
        (
            [],
            "give a case, such as ib-3, or your own model with --model and --task or a "
            "file of prompts; got neither.",
        ),
        (["ib-3,ib-15", "pairs.csv"], "one file of prompts cannot serve 2 cases; name one case."),
    ],
)
def test_refusals(args: list[str], text: str) -> None:
    done = run(*args)
    assert isinstance(done.exception, ValueError)
    assert text in str(done.exception)


def test_your_own_subject_needs_prompts(tmp_path: Path) -> None:
    path, _ = own_subject(tmp_path)
    assert "your own model needs prompts: name a task with --task" in str(run(path).exception)
