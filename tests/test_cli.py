"""The commands: what they print and write, what they refuse, and with which exit code."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import graphcircuits as gc
from graphcircuits import cli, methods
from graphcircuits.cases import case_ids, load_case
from graphcircuits.commands.output import parse_options
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.result.result import Result
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.shell import Command, Ended, refused
from tests.subjects import make_subject
from tests.viewer.reading import data_of, floats

# The program


@pytest.mark.parametrize(
    "name",
    ["bench", "build", "cases", "compile", "evaluate", "interact", "localize", "train"],
)
def test_every_command_has_help(name: str) -> None:
    done = CliRunner().invoke(cli.app, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.output


@pytest.mark.parametrize("name", cli.MOVED)
def test_commands_of_the_laboratory_say_where_they_are(command: Command, name: str) -> None:
    ended = command(name, "ib-3", "--methods", "eap")
    refused(ended, f"in a clone of the repository run: {cli.MOVED[name]}")
    assert f"│ {name} " not in CliRunner().invoke(cli.app, ["--help"]).output


def test_version(command: Command) -> None:
    import graphcircuits

    assert command("--version") == Ended(0, f"{graphcircuits.__version__}\n", "")


def test_unknown_options_and_commands(command: Command) -> None:
    assert command("cases", "--splits", "test").code == 2
    assert command("locate").code == 2


# cases and compile


def test_cases(command: Command) -> None:
    ended = command("cases", "--split", "test", "--json")
    assert ended.code == 0
    assert [record["id"] for record in json.loads(ended.out)] == case_ids(split="test")
    table = command("cases", "--split", "test").out
    assert table.splitlines()[0].split()[:3] == ["id", "split", "layers"]
    assert all(f"\n{id} " in table for id in case_ids(split="test"))
    refused(command("cases", "--family", "xy"), "unknown family 'xy'; choose from ib, tb, new")


def test_compile(command: Command, tmp_path: Path) -> None:
    dot, html = tmp_path / "new" / "a.dot", tmp_path / "a.html"
    ended = command("compile", "ib-3", "--dot", dot, "--html", html)
    assert ended.code == 0
    assert "circuit (complete), 5 of" in ended.out
    assert f"wrote {dot}" in ended.out
    assert dot.read_text().startswith("digraph")
    assert data_of(html.read_text())["results"] == []
    record = json.loads(command("compile", "ib-3", "--json").out)
    assert len(record["circuit"]) == 5


def test_compile_refusals(command: Command, tmp_path: Path) -> None:
    refused(command("compile", "ib-3000"), "unknown case 'ib-3000'")
    refused(command("compile", "ib-3", "--causal"), "brings its own vocabulary")
    refused(command("compile", "prog.py:x"), "needs --vocab and --max-seq-len")
    absent = tmp_path / "absent.py"
    ended = command("compile", f"{absent}:x", "--vocab", "a,b", "--max-seq-len", "4")
    refused(ended, "absent.py")


# localize


def test_localize_a_case(command: Command, tmp_path: Path) -> None:
    out, html = tmp_path / "new" / "circuit.json", tmp_path / "circuit.html"
    given = ["localize", "ib-3", "--method", "eap", "--pairs", "8", "--edges", "4"]
    ended = command(*given, "--out", out, "--html", html)
    assert ended.code == 0, ended.err
    result, case = Result.load(out), load_case("ib-3")
    direct = methods.localize(case.subject(), case.pairs(8), "eap", seed=0)
    assert torch.equal(result.scores, direct.scores)
    assert (result.subject, result.method, result.seed) == ("ib-3", "eap", 0)
    assert result.chosen == direct.circuit(edges=4)
    assert f"AUROC {auroc(direct, case.circuit):.4f} (head level)" in ended.out
    assert "4 of 110 edges in the circuit" in ended.out
    assert f"wrote {html}" in ended.out
    told = data_of(html.read_text())["results"][0]["scores"]
    assert torch.equal(floats(told), direct.scores.float())

    record = json.loads(command(*given, "--level", "qkv", "--json").out)
    assert record["circuit"] == list(direct.circuit(edges=4))
    assert record["auroc"] == auroc(direct, case.circuit, "qkv")
    assert [edge["edge"] for edge in record["ranking"][:4]] == [name for name, _ in direct.top(4)]


def test_localize_needs_no_other_word(command: Command, tmp_path: Path) -> None:
    """The method is the one that the shipped predictor says, and nothing is written unasked."""
    ended = command("localize", "ib-3")
    assert ended.code == 0
    case = load_case("ib-3")
    result = methods.localize(case.subject(), case.pairs(64))
    assert f"{result.method}, 64 pairs, seed 0" in ended.out
    assert result.notes[0].startswith("no method was named: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gcl", "eap-ig"])
def test_the_command_proposes_what_python_does(command: Command, method: str) -> None:
    ended = command("localize", "ib-13", "--method", method, "--json")
    case = load_case("ib-13")
    result = gc.localize(case.subject(), case.pairs(64), method)
    assert json.loads(ended.out)["circuit"] == list(result.circuit())


@pytest.mark.slow
@pytest.mark.usefixtures("uninformed")
def test_no_case_meets_a_predictor_that_was_trained_on_it(command: Command) -> None:
    assert load_case("ib-7").fold == 0
    given = ["localize", "ib-7", "--pairs", "8", "--method", "gcl"]
    note = "predictor fold-0, which was trained without this case"
    assert note in command(*given).out
    option = ["--option", "predictor=default"]
    refused(command(*given, *option), "the predictor 'default' was trained on ib-7 itself")
    record = json.loads(command(*given, "--json").out)
    assert record["options"]["predictor"] == "fold-0"
    assert record["notes"] == [f"{note} (ib-7)"]


@pytest.mark.slow
@pytest.mark.usefixtures("uninformed")
def test_what_the_predictor_has_not_seen_is_said(command: Command, tmp_path: Path) -> None:
    path, prompts = tmp_path / "mine.safetensors", tmp_path / "pairs.csv"
    save_transformer(path, make_subject("gpt-2", n_layers=9))
    prompts.write_text("clean,corrupted,correct_idx\n0 2 3 4,0 3 3 4,1\n0 4 2 2,0 2 2 2,2\n")
    given = ["localize", "--subject", path, "--pairs-file", prompts]
    ended = command(*given, "--method", "gcl")
    assert ended.code == 0, ended.err
    note = "beyond what the predictor was trained on: 9 layers, at most 8 were seen"
    assert note in ended.out
    notes = json.loads(command(*given, "--method", "gcl", "--json").out)["notes"]
    assert [said.startswith(note) for said in notes].count(True) == 1
    # Without a method, a subject that nobody planted gets one that needs no training.
    ended = command(*given)
    assert "eap-ig, 2 pairs, seed 0" in ended.out
    assert "no method was named: eap-ig, because gcl has not been measured on" in ended.out


def test_options_reach_the_method(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fast(
        subject: Transformer,
        pairs: Pairs,
        *,
        steps: int = 1,
        pool_by: str = "",
    ) -> Tensor:
        seen.update(steps=steps, pool_by=pool_by)
        return torch.zeros(subject.graph.n_edges)

    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), "fast", fast)
    given = ["localize", "ib-3", "--method", "fast"]
    ended = command(*given, "--option", "steps=7", "--option", "pool-by=sum", "--json")
    assert seen == {"steps": 7, "pool_by": "sum"}
    assert json.loads(ended.out)["options"] == seen
    refused(
        command(*given, "--option", "step=7"),
        "fast has no option 'step'; did you mean 'steps'? it has steps, pool-by, paths.",
    )


def own_subject(tmp_path: Path) -> tuple[Path, Path, Transformer]:
    codec = Codec(("x", "y", "z"), ("p", "q", "r"))
    plain = make_subject()
    subject = Transformer(plain.config, dict(plain.weights), codec)
    path, prompts = tmp_path / "mine.safetensors", tmp_path / "pairs.csv"
    save_transformer(path, subject)
    prompts.write_text("clean,corrupted\n0 2 3 4,0 3 3 4\n0 4 2 2,0 2 2 2\n")
    return path, prompts, subject


def test_localize_a_subject_of_your_own(command: Command, tmp_path: Path) -> None:
    path, prompts, subject = own_subject(tmp_path)
    given = ["localize", "--subject", path, "--pairs-file", prompts, "--method", "exact", "--json"]
    record = json.loads(command(*given).out)
    direct = methods.localize(subject, Pairs.load(prompts), "exact")
    assert [edge["score"] for edge in record["ranking"]] == [score for _, score in direct.top(110)]
    assert (record["subject"], record["auroc"]) == ("mine", None)
    prompts.write_text("clean,corrupted\nx y z,y y z\nz x x,x x x\n")
    assert json.loads(command(*given, "--words").out)["ranking"] == record["ranking"]
    assert "AUROC" not in command(*given[:-1], "--words").out


def test_localize_a_folder_of_interpbench(command: Command, tmp_path: Path) -> None:
    from lab.benchmarks.interpbench_export import export_interpbench

    case = load_case("ib-3")
    export_interpbench(tmp_path / "3", case.subject(), case.circuit, {})
    pairs = case.pairs(4)
    pairs.save(tmp_path / "pairs.csv")
    given = ["--subject", tmp_path / "3", "--pairs-file", tmp_path / "pairs.csv"]
    record = json.loads(command("localize", *given, "--method", "eap", "--json").out)
    expected = auroc(methods.localize(case.subject(), pairs, "eap"), case.circuit)
    assert record["auroc"] == pytest.approx(expected, abs=0.02)


def test_localize_refusals(command: Command, tmp_path: Path) -> None:
    path, prompts, _ = own_subject(tmp_path)
    refused(command("localize"), "give a case, such as ib-3, or your own")
    refused(
        command("localize", "ib-3", "--subject", path), "give a case or --model, not both ib-3 and"
    )
    refused(
        command("localize", "--subject", path), "your own model needs prompts: name a task with"
    )
    refused(command("localize", "ib-3", "--pairs-file", prompts), "a case draws its own prompts")
    refused(
        command("localize", "ib-3", "--method", "eapig"), "unknown method 'eapig'; did you mean"
    )
    refused(
        command("localize", "ib-3", "--option", "steps"), "an option is NAME=VALUE, got 'steps'"
    )
    ended = command("localize", "ib-3", "--level", "x", "--edges", "0", "--out", "a.txt")
    refused(ended, "--level must be one of head, qkv, got 'x'; --edges must be at least 1, got 0; ")
    assert "--out must end in .json, .safetensors, .csv, .dot, got a.txt." in ended.err
    refused(
        command("localize", "ib-3", "--html", "a.pdf"), "--html must end in .html, .htm, got a.pdf"
    )
    ours = ["localize", "--pairs-file", prompts, "--subject"]
    refused(command(*ours, tmp_path / "none"), "none: there is no such file or folder.")
    refused(command(*ours, tmp_path), "expected config.json (Hugging Face) or ll_model.pth")
    refused(command(*ours, prompts), "is not a whole safetensors file")
    prompts.write_text("clean,corrupted\n0 2 3 4,0 2 3 4\n")
    refused(command(*ours, path), "clean and corrupted prompts are identical")
    save_transformer(path, make_subject())
    refused(command(*ours, path, "--words"), "has no vocabulary to read words with")


# bench


@pytest.mark.slow
def test_bench(command: Command, tmp_path: Path) -> None:
    given = ["bench", "--methods", "random,eap", "--cases", "ib-3,ib-8", "--seeds", "2"]
    given += ["--pairs", "4", "--out", str(tmp_path / "out")]
    ended = command(*given, "--markdown", tmp_path / "docs" / "table.md")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("2 methods on 2 cases, AUROC (complete labels, head level)")
    assert len(list((tmp_path / "out" / "runs").rglob("*.json"))) == 8
    table = (tmp_path / "out" / "table.md").read_text()
    # The copy has the runs beside it, and links them.
    beside = " Every run is in [table-cases.csv](table-cases.csv).\n"
    assert (tmp_path / "docs" / "table.md").read_text() == table.removesuffix("\n") + beside
    runs = [tmp_path / "docs" / "table-cases.csv", tmp_path / "out" / "cases.csv"]
    assert len({path.read_text() for path in runs}) == 1
    assert f"Made with `graphcircuits {' '.join(given)} --markdown" in table
    for name in ("table.csv", "cases.csv", "boxplot.svg"):
        assert (tmp_path / "out" / name).is_file()
        assert f"wrote {tmp_path / 'out' / name}" in ended.out
    record = json.loads(command(*given, "--json").out)
    assert [row["method"] for row in record["methods"]] == ["eap", "random"]
    assert record["failures"] == []


@pytest.mark.slow
def test_bench_on_the_test_cases_goes_by_all_labels(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One test case stands for all sixteen.
    for module in ("selection", "report"):
        monkeypatch.setattr(f"graphcircuits.compare.{module}.case_ids", lambda **_: ["ib-3"])
    ended = command("bench", "--methods", "random", "--pairs", "2", "--out", tmp_path)
    assert ended.code == 0
    assert "1 method on 1 case (test), AUROC (complete labels, head level)" in ended.out
    for labels in ("interpbench", "paper"):
        assert f"\nAUROC ({labels} labels, head level)\n" in ended.out


@pytest.mark.slow
def test_a_failing_bench_ends_with_1(command: Command, tmp_path: Path) -> None:
    given = ["bench", "--methods", "random", "--pairs", "2", "--out", tmp_path, "--cases"]
    ended = command(*given, "ib-3,tb-length")
    assert ended.code == 1
    assert "failed: tb-length: FileNotFoundError: no subject for case 'tb-length'" in ended.err
    assert f"1 of 2 results are in {tmp_path}" in ended.err
    assert "random" in ended.out
    # Without any result there is no table to write.
    ended = command(*given, "tb-length")
    assert ended.code == 1
    assert "wrote" not in ended.out


@pytest.mark.slow
def test_an_interrupted_bench_says_how_to_go_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(subject: Transformer, pairs: Pairs) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), "slow", slow)
    given = ["bench", "--cases", "ib-3", "--pairs", "2", "--out", tmp_path]
    ended = command(*given, "--methods", "random,slow")
    assert ended.code == 130
    assert f"interrupted: 1 of 2 results are kept in {tmp_path}; the same command" in ended.err
    assert len(list(tmp_path.rglob("*.json"))) == 1


@pytest.mark.slow
def test_a_bench_without_matplotlib_has_all_but_the_plot(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    given = ["--methods", "random", "--cases", "ib-3", "--pairs", "2", "--out", tmp_path]
    ended = command("bench", *given)
    assert ended.code == 0
    assert "no box plot: the box plot needs matplotlib; install it with: pip install" in ended.err
    assert not (tmp_path / "boxplot.svg").exists()
    assert (tmp_path / "table.md").exists()


@pytest.mark.slow
def test_bench_refusals(command: Command, tmp_path: Path) -> None:
    given = ["bench", "--cases", "ib-3", "--out", tmp_path]
    refused(command(*given, "--methods", "rnadom"), "unknown method 'rnadom'; did you mean 'random")
    refused(command(*given, "--option", "steps=3"), "METHOD.NAME=VALUE, got 'steps=3'")
    refused(
        command(*given, "--option", "eap.x=3"),
        "--option eap.x=3: eap has no option 'x'; it has direction, pool, memory-limit, paths.",
    )
    refused(command(*given, "--seeds", "0"), "--seeds must be in 1..1000, got 0.")
    refused(
        command(*given, "--labels", "mine"), "--labels must be one of complete, interpbench, pa"
    )
    refused(command("bench", "--cases", "tset"), "unknown case 'tset'")
    refused(command("bench", "--cases", "ib-3,ib-8,ib-3"), "--cases names ib-3 twice.")
    refused(command(*given, "--pairs", "0"), "--pairs must be in 1..1000000, got 0.")
    refused(command("bench", "--out", "/dev/null"), "/dev/null is not a folder.")
    refused(command(*given, "--markdown", "/"), "--markdown must be a file, but / is a folder.")
    assert list(tmp_path.iterdir()) == []


# What commands share


def test_parse_options() -> None:
    assert parse_options(["a=1", "b-c=x", "d=[1, 2]", "e=null", "f==", "g="]) == {
        **{"a": 1, "b_c": "x", "d": [1, 2], "e": None},
        **{"f": "=", "g": ""},
    }
    with pytest.raises(ValueError, match="the option a is given twice"):
        parse_options(["a=1", "a=2"])
    with pytest.raises(ValueError, match="an option is NAME=VALUE, got '=1'"):
        parse_options(["=1"])
