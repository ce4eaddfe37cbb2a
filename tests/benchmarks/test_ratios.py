"""Two methods by hand: seeds averaged first, then ratios of subjects."""

from benchmarks.ratios import compared


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
        "2 subjects, cmd 0.2500 and 0.3000, smaller CMD on 50%, largest ratio 1.50, "
        "2.00 times EAP's time"
    )
    known = [{**each, "auroc": "0.5"} for each in rows]
    assert "auroc 0.5000 and 0.5000" in compared(known, "gcl", "eap-ig")
