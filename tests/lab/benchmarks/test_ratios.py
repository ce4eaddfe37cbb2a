"""Two methods by hand: seeds averaged first, then ratios of subjects."""

from pathlib import Path

import pytest

from lab.benchmarks.ratios import compared, main


def row(case: str, method: str, cmd: float, seconds: float, auroc: str = "") -> dict[str, str]:
    return {
        "case": case,
        "method": method,
        "cmd": str(cmd),
        "seconds": str(seconds),
        "auroc": auroc,
    }


def test_two_subjects_by_hand() -> None:
    rows = [row("a", "gcl", 0.1, 2.0), row("a", "gcl", 0.3, 2.0), row("b", "gcl", 0.3, 4.0)]
    rows += [row("a", "eap-ig", 0.4, 9.0), row("b", "eap-ig", 0.2, 9.0), row("a", "eap", 1.0, 1.0)]
    assert compared(rows, "gcl", "eap-ig") == (
        "2 subjects, CMD 0.2500 and 0.3000, CMD less by 16.7% [-50.0, 50.0], smaller CMD on 50%, "
        "largest ratio 1.50, 2.00 times EAP's time"
    )
    new = [{**each, "log_area": each["cmd"], "edges_for_0.9": "8"} for each in rows]
    new[2]["edges_for_0.9"] = "2"  # gcl on the second: half of 8 in the geometric mean
    assert "log area 0.2500 and 0.3000, log area less by 16.7%" in compared(new, "gcl", "eap-ig")
    assert "edges for 0.9 fewer by 50.0% [0.0, 75.0]" in compared(new, "gcl", "eap-ig")
    known = [{**each, "auroc": "0.5"} for each in rows]
    assert "auroc 0.5000 and 0.5000" in compared(known, "gcl", "eap-ig")


def test_a_method_that_was_not_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cases.csv"
    file.write_text("case,method,cmd,seconds,auroc\na,gcl,0.1,1,\na,eap-ig,0.2,1,\n")
    main([str(file)])
    assert "cases, gcl by eap-ig: 1 subjects" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([str(file), "--by", "eap-ig+paths"])
    assert "has no runs of eap-ig+paths" in capsys.readouterr().err
