"""A certificate with made-up figures: one line passed, one failed, one missing."""

from typing import Any

import torch

from graphcircuits.certificates.certificate import Certificate, EdgeChances, Line
from graphcircuits.circuit import Circuit


def chances(circuit: Circuit, text: str = "what it is of") -> EdgeChances:
    """Quarters, so that they survive single precision; some edges outside came back as well."""
    generator = torch.Generator().manual_seed(0)
    back = torch.randint(0, 5, circuit.mask.shape, generator=generator) / 4
    likely = (back + circuit.mask.float()) / 2
    return EdgeChances(came_back=back, probability=likely, meaning=text)


def certified(circuit: Circuit, text: str = "", **given: Any) -> Certificate:
    """A certificate of the circuit; `text` stands wherever a text can."""
    stable = Line(
        name="stable",
        passed=False,
        value=0.25,
        interval=(0.125, 0.5),
        asked=text or "at least 0.5",
        sentence=text or "8 fresh searches share this much with it",
    )
    sufficient = Line(
        name="sufficient",
        passed=True,
        value=0.96,
        interval=None,
        asked="from 0.8 up",
        sentence="keeps 0.96",
    )
    about: dict[str, Any] = {
        "lines": {"sufficient": sufficient, "stable": stable},
        "missing": {"unique": text or "the time was over"},
        "edges": chances(circuit, text or "what it is of"),
        "core": None,
        "rivals": (),
        "subject": text or "ib-3",
        "task": text or "a task",
        "search": text or "eap",
        "notes": (text or "a note",),
        "seed": 0,
        "n_pairs": 32,
        "n_fresh": 16,
        "seconds": 1.5,
    }
    return Certificate(circuit=circuit, **about | given)
