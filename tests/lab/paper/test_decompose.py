"""What explains the distance to the paper, on sweeps made up for it."""

import pytest

from graphcircuits.cases import case_ids
from lab.paper.decompose import (
    contrast_table,
    contrast_text,
    contrasts,
    leak_table,
    leak_text,
    likeness,
    main_contrasts,
    shared_circuits,
)
from lab.paper.sweeps import sweeps_of
from tests.lab.paper.sweep_examples import row, sweep

NAME = "dirgnn-line-observed"


def test_pairs_differ_in_one_thing_and_go_towards_the_paper() -> None:
    base = sweep({NAME: 0.99})
    labels = sweep({NAME: 0.93}, labels="paper")
    fleet = sweep({NAME: 0.96}, fleet="public", details={"trained on": "planted"})
    both = sweep(fleet="public", labels="paper", pool="paper-pool")
    features = sweep({NAME: 0.95}, details={"standardize": False})
    found = contrasts([labels, base, fleet, both, features])
    assert [(one.aspect, one.values) for one in found] == [
        ("labels", ("interpbench", "paper")),
        ("subjects", ("planted", "public, trained on planted")),
        ("standardize", ("default", "False")),
    ]
    assert found[0].before is base
    assert found[0].after is labels
    lines = contrast_table(found).splitlines()
    assert lines[2] == (
        "| labels | interpbench | paper | aligner tabpfn, pool pool, subjects planted | 0.990 "
        "| 0.930 | \N{MINUS SIGN}0.060 [\N{MINUS SIGN}0.060, \N{MINUS SIGN}0.060] "
        "| \N{MINUS SIGN}0.004 | 14 |"
    )
    assert "| features (standardize) | default | False |" in lines[4]
    text = contrast_text([labels, base, fleet, both, features], found)
    assert (
        "Beyond noise, labels (`interpbench` to `paper`), \N{MINUS SIGN}0.060 "
        "[\N{MINUS SIGN}0.060, \N{MINUS SIGN}0.060], towards the published figure."
    ) in text
    assert text.endswith(
        "The sweep that is most like the paper's (aligner tabpfn, paper-pool, public fleet, paper "
        "labels) has 0.902, 0.000 from the published 0.902."
    )
    assert [likeness(one) for one in (base, labels, fleet, both)] == [1, 2, 1, 4]


def test_it_may_go_away_from_the_paper_or_be_within_noise() -> None:
    pools = [sweep({NAME: 0.85}, pool="paper-pool"), sweep({NAME: 0.9})]
    text = contrast_text(pools, contrasts(pools))
    assert "Beyond noise, pool (`pool` to `paper-pool`), \N{MINUS SIGN}0.050 [" in text
    assert "], away from the published figure." in text
    seeds = (-0.05, 0.0, 0.05)
    noisy = [sweep({NAME: x}, labels=n, shifts=seeds) for x, n in ((0.9, "interpbench"),)]
    noisy += [sweep({NAME: 0.89}, labels="paper", shifts=seeds)]
    text = contrast_text(noisy, contrasts(noisy))
    assert "Within noise: labels \N{MINUS SIGN}0.010 [\N{MINUS SIGN}0." in text
    assert "Beyond noise" not in text


def test_of_each_aspect_one_pair_is_the_main_one() -> None:
    base, paper = sweep(), sweep(labels="paper")
    trained = sweep(fleet="public", details={"trained on": "planted"})
    public = sweep(fleet="public")
    found = contrasts([base, paper, trained, public])
    main = main_contrasts(found)
    assert [one.aspect for one in main] == ["labels", "subjects"]
    assert main[1].values == ("planted", "public")
    assert len(found) > 2


@pytest.mark.slow
def test_the_leak_is_told_apart() -> None:
    assert shared_circuits("pool", "interpbench") == []
    leaked = shared_circuits("interpbench-pool", "interpbench")
    assert len(leaked) == 10
    tests = case_ids(split="test")
    held_out = {case: (0.9 + 0.05 * (case in leaked), 0.9) for case in tests}
    level = dict.fromkeys(tests, (0.9, 0.9))
    rows = [row(NAME, cases=level), row(NAME, cases=held_out, pool="interpbench-pool")]
    sweeps = sweeps_of(rows)
    lines = leak_table(sweeps).splitlines()
    assert lines[2].endswith("| 0.900 | 0.900 |")
    assert lines[3].endswith("| 0.925 | 0.900 |")
    text = leak_text(contrasts(sweeps))
    assert text.startswith("10 of the 16 test cases have the very mask of")
    assert "on these and by 0.000 [0.000, 0.000] on the others." in text
    assert (
        "From pool `pool` to `interpbench-pool` (planted subjects) the mean changes by +0.025"
        in (text)
    )


def test_nothing_is_said_where_nothing_can_be() -> None:
    far = [sweep(), sweep(labels="paper", pool="paper-pool")]
    assert contrasts(far) == []
    assert contrast_text(far, []).startswith("No two of the sweeps differ in one thing alone")
    apart = sweeps_of([row(NAME), row("dirgnn-line-none", labels="paper")])
    assert contrasts(apart) == []
    # Without the highlighted configuration another that both have is shown.
    others = sweeps_of([row("dirgnn-line-none", labels=name) for name in ("interpbench", "paper")])
    found = contrasts(others)
    assert "| 0.825 | 0.825 | 0.000 [0.000, 0.000] | 0.000 | 1 |" in contrast_table(found)
    assert "most like the paper" not in contrast_text(others, found)
