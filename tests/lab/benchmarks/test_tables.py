"""The commands that make the tables: methods that there are, and pages with a file beside them."""

import shlex

import pytest

from graphcircuits.commands.options import listed_methods
from graphcircuits.methods import FLOORS, METHODS
from lab.benchmarks import tables


def test_commands_name_known_methods_and_the_floors(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--show", "--processes", "3", "--out", "build/runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(tables.TABLES)
    for line, page in zip(lines, tables.TABLES, strict=True):
        words = shlex.split(line)
        options = dict(zip(words[2::2], words[3::2], strict=True))
        methods = listed_methods(options["--methods"])
        assert {"random", "edge-frequency", "gcl-blind", "eap-ig+paths"} <= set(methods)
        assert set(options["--once"].split(",")) <= set(methods)
        assert options["--markdown"] == f"docs/results/{page}.md"
        assert (options["--processes"], options["--out"]) == ("3", "build/runs")
    everything = set(tables.TABLES["test"][1])
    assert everything - {"eap-ig+paths"} == METHODS.keys() | FLOORS.keys()


def test_quick_tables_leave_out_what_takes_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--show", "--quick", "--only", "test", "multitask"]) == 0
    for line in capsys.readouterr().out.splitlines():
        words = shlex.split(line)
        methods = listed_methods(words[words.index("--methods") + 1])
        assert {"gcl", "eap-ig+paths", "edge-frequency"} <= set(methods)
        assert not {"acdc", *tables.GATES} & set(methods)
        assert "--once" not in words
