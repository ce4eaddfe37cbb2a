"""Make the notebooks of docs/notebooks from the scripts of this folder, with their outputs.

    python -m examples [NAME ...] [--into docs/notebooks]

1. A script in jupytext's percent format becomes a notebook: the same cells, under ids that do not
   change from run to run.
2. It is run by a kernel of its own in an empty folder. An error, a warning or anything else on
   stderr ends that.
3. What is written holds no time and no path of the machine, and is smaller than LARGEST bytes.

Cells with the tag `smollm2` need a language model of 100 MB, which `make fetch-models` gets. Where
it is not there, they keep the outputs that were recorded where it was.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

SCRIPTS = Path(__file__).parent
NOTEBOOKS = SCRIPTS.parent / "docs" / "notebooks"
NAMES = tuple(sorted(path.stem for path in SCRIPTS.glob("[!_]*.py")))
MODEL_TAG = "smollm2"
MODEL = "smollm2.gguf"
LARGEST = 300_000
SECONDS = 600
"""That a cell may take."""
DEFAULTS = {
    # More threads only make small tensors wait.
    "OMP_NUM_THREADS": "1",
    # What progress bars of other packages say where there are no widgets to draw them with.
    "PYTHONWARNINGS": "ignore:IProgress not found",
}


def notebook_of(name: str) -> Any:
    """The cells of a script, not yet run."""
    found = jupytext.read(SCRIPTS / f"{name}.py", fmt="py:percent")
    for place, cell in enumerate(found.cells):
        cell.id = f"{name}-{place}".replace("_", "-")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found.metadata = nbformat.from_dict({"kernelspec": kernel})
    return found


def executed(name: str, models: Path | None) -> Any:
    """The notebook with the outputs of a kernel that has run nothing else.

    Without a folder of models, the cells that need one are left as they are.
    """
    notebook = notebook_of(name)
    whole = list(notebook.cells)
    if models is None:
        notebook.cells = [cell for cell in whole if not needs_model(cell)]
    with tempfile.TemporaryDirectory() as folder:
        # Settings and history of whoever runs this are no part of it.
        own = {"IPYTHONDIR": f"{folder}/ipython", "JUPYTER_RUNTIME_DIR": f"{folder}/runtime"}
        # This checkout, whatever is installed.
        own["PYTHONPATH"] = os.pathsep.join([str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")])
        work = Path(folder) / "work"
        work.mkdir()
        named = "" if models is None else str(models.resolve())
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=SECONDS,
            record_timing=False,
            coalesce_streams=True,
            # Below that a kernel tells at every start that its local port is not encrypted.
            extra_arguments=["--log-level=ERROR"],
        )
        environment = {**DEFAULTS, **os.environ, **own, "GRAPHCIRCUITS_MODELS": named}
        client.execute(cwd=str(work), env=environment)
        problems = problems_of(
            notebook, (folder, str(Path.home()), str(SCRIPTS.parent), sys.prefix)
        )
    if problems:
        raise ValueError(f"{name}: {'; '.join(problems)}.")
    notebook.cells = whole
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def needs_model(cell: Any) -> bool:
    return MODEL_TAG in cell.metadata.get("tags", ())


def problems_of(notebook: Any, paths: tuple[str, ...] = ()) -> list[str]:
    """What must not be in outputs: words on stderr, errors, and paths of the machine."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            text = json.dumps(output)
            if output.output_type == "error" or output.get("name") == "stderr":
                said = output.get("text") or output.get("evalue")
                found.append(f"cell {cell.id} says on stderr: {said!r}")
            found += [f"cell {cell.id} shows the path {path}" for path in paths if path in text]
    return found


def with_recorded(notebook: Any, path: Path) -> Any:
    """The notebook with the outputs that `path` has for cells that need a model."""
    recorded = nbformat.read(path, as_version=4) if path.exists() else None
    known = {} if recorded is None else {cell.source: cell for cell in recorded.cells}
    for cell in filter(needs_model, notebook.cells):
        if cell.source not in known or not known[cell.source].outputs:
            raise ValueError(
                f"{path.name} has no outputs of cell {cell.id}, which needs {MODEL}; get it with "
                "make fetch-models, or name its folder with GRAPHCIRCUITS_MODELS."
            )
        cell.outputs = known[cell.source].outputs
        cell.execution_count = known[cell.source].execution_count
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the notebooks from their scripts.")
    parser.add_argument("names", nargs="*", default=NAMES, help="all of them if none is named")
    parser.add_argument("--into", type=Path, default=NOTEBOOKS)
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"no script {', '.join(unknown)}; there are {', '.join(NAMES)}")
    folder = Path(os.environ.get("GRAPHCIRCUITS_MODELS", SCRIPTS.parent / "build" / "models"))
    models = folder if (folder / MODEL).is_file() else None
    for name in given.names:
        path = given.into / f"{name}.ipynb"
        notebook = executed(name, models)
        if models is None:
            notebook = with_recorded(notebook, NOTEBOOKS / path.name)
        text = nbformat.writes(notebook, indent=1) + "\n"
        if len(text.encode()) > LARGEST:
            sys.exit(f"{path.name} would have {len(text.encode()):,} bytes, at most {LARGEST:,}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
