"""Certificates that cost nothing, for tests of what a bench makes of them."""

from graphcircuits import Circuit
from graphcircuits.certificates.certificate import NAMES, Certificate, Line


def flat_certificate(circuit: Circuit, failing: str = "", missing: str = "") -> Certificate:
    """Every value is 0.5; one question may fail, and one be without an answer."""
    lines = {
        name: Line(
            name=name, passed=name != failing, value=0.5, interval=None, asked="", sentence=""
        )
        for name in NAMES
        if name != missing
    }
    return Certificate(
        circuit=circuit,
        lines=lines,
        missing={missing: "no time"} if missing else {},
        edges=None,
        core=None,
        rivals=(),
        subject="",
        task="",
        search="",
        notes=(),
        seed=0,
        n_pairs=1,
        n_fresh=1,
        seconds=0.0,
    )
