"""The notebooks are the scripts of examples/ with their outputs, and run from a clean kernel."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from examples.__main__ import (
    LARGEST,
    NAMES,
    NOTEBOOKS,
    SCRIPTS,
    main,
    needs_model,
    notebook_of,
    problems_of,
    with_recorded,
)

MACHINE = ("/home/", "/root", "/work", "/tmp/", "/Users/", "C:\\\\", "site-packages")
LINK = re.compile(r"\]\(([^)]+)\)")


def stored(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def kinds(cell: Any) -> list[tuple[str, ...]]:
    """What a cell puts out, without its content."""
    return [
        (output.output_type, *sorted(output.get("data", ())), output.get("name", ""))
        for output in cell.get("outputs", ())
    ]


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "GRAPHCIRCUITS_MODELS": str(cwd / "no-models"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SCRIPTS.parent),
    }
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_every_script_has_a_notebook_and_is_listed() -> None:
    assert set(NAMES) == {"five_minutes", "your_model", "plant_a_circuit", "your_method"}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)
    listed = re.findall(r"^\| \[(\w+)\.py\]", (SCRIPTS / "README.md").read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_script(name: str) -> None:
    def cells(notebook: Any) -> list[Any]:
        return [(c.id, c.cell_type, c.metadata, c.source) for c in notebook.cells]

    assert cells(stored(name)) == cells(notebook_of(name)), "make notebooks makes them again"


@pytest.mark.parametrize("name", NAMES)
def test_recorded_outputs_are_whole_and_tell_nothing_of_the_machine(name: str) -> None:
    notebook = stored(name)
    assert problems_of(notebook, MACHINE) == []
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < LARGEST
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    silent = [cell.id for cell in code if "print(" in cell.source and not cell.outputs]
    assert silent == []


def test_the_cells_of_the_language_model_were_run_with_it() -> None:
    cells = list(filter(needs_model, stored("your_model").cells))
    assert len(cells) == 3
    assert cells[0].outputs[0].text.startswith("this is SmolLM2: 30 layers of 9 heads")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name: str) -> None:
    text = "\n".join(c.source for c in stored(name).cells if c.cell_type == "markdown")
    links = [x.partition("#")[0] for x in LINK.findall(text) if not x.startswith("https://")]
    assert links
    assert [link for link in links if not (NOTEBOOKS / link).is_file()] == []


def test_what_must_not_be_in_outputs_is_found() -> None:
    outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="a warning"),
        nbformat.v4.new_output("error", ename="E", evalue="an error", traceback=[]),
        nbformat.v4.new_output("execute_result", data={"text/plain": "'/home/me/x'"}),
        nbformat.v4.new_output("stream", name="stdout", text="all is well"),
    ]
    cell = nbformat.v4.new_code_cell("1", outputs=outputs, id="one")
    assert problems_of(nbformat.v4.new_notebook(cells=[cell]), ("/home/me",)) == [
        "cell one says on stderr: 'a warning'",
        "cell one says on stderr: 'an error'",
        "cell one shows the path /home/me",
    ]


def test_cells_without_their_model_keep_what_was_recorded(tmp_path: Path) -> None:
    recorded, fresh = stored("your_model"), notebook_of("your_model")
    found = with_recorded(fresh, NOTEBOOKS / "your_model.ipynb")
    for one, other in zip(found.cells, recorded.cells, strict=True):
        assert kinds(one) == (kinds(other) if needs_model(other) else [])
    words = (
        r"^none\.ipynb has no outputs of cell your-model-\d+, which needs smollm2\.gguf; get it "
        r"with make fetch-models, or name its folder with GRAPHCIRCUITS_MODELS\.$"
    )
    with pytest.raises(ValueError, match=words):
        with_recorded(notebook_of("your_model"), tmp_path / "none.ipynb")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_a_clean_kernel(name: str, tmp_path: Path) -> None:
    """Without a word on stderr, or `examples` refuses it; and with outputs of the kinds that are
    recorded. What needs SmolLM2 is not run."""
    done = run("-m", "examples", name, "--into", tmp_path / "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = nbformat.read(tmp_path / "made" / f"{name}.ipynb", as_version=4)
    assert [kinds(cell) for cell in made.cells] == [kinds(cell) for cell in stored(name).cells]


@pytest.mark.slow
def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    done = run("-W", "error", SCRIPTS / "five_minutes.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "AUROC by head:    1.0" in done.stdout
    assert (tmp_path / "circuit.html").stat().st_size < 400_000


def test_an_unknown_script_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["examples", "six_minutes"])
    with pytest.raises(SystemExit):
        main()
    assert f"no script six_minutes; there are {', '.join(NAMES)}" in capsys.readouterr().err
