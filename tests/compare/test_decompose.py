"""What explains the distance to the paper, on sweeps made up for it."""

from graphcircuits.compare.decompose import contrast_table, contrast_text, contrasts, likeness
from graphcircuits.compare.sweeps import sweeps_of
from tests.compare.sweep_examples import row, sweep

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
        "| 0.930 | 0.902 | \N{MINUS SIGN}0.004 | 14 |"
    )
    assert "| features (standardize) | default | False |" in lines[4]
    text = contrast_text([labels, base, fleet, both, features], found)
    assert (
        "Of labels, subjects and features (standardize), labels move it most: `interpbench` to "
        "`paper` takes it from 0.990 to 0.930 (\N{MINUS SIGN}0.060), nearer to the published 0.902."
    ) in text
    assert text.endswith(
        "The sweep that is most like the paper's (aligner tabpfn, paper-pool, public fleet, paper "
        "labels) has 0.902, 0.000 from the published figure."
    )
    assert [likeness(one) for one in (base, labels, fleet, both)] == [1, 2, 1, 4]


def test_it_may_go_away_from_the_paper_or_not_move_at_all() -> None:
    pools = [sweep({NAME: 0.85}, pool="paper-pool"), sweep({NAME: 0.9})]
    text = contrast_text(pools, contrasts(pools))
    assert (
        "Of pool, pool moves it most: `pool` to `paper-pool` takes it from 0.900 to 0.850 "
        "(\N{MINUS SIGN}0.050), further from the published 0.902."
    ) in text
    still = [sweep(), sweep(aligner="invariant")]
    assert "Of features (aligner) none moves it." in contrast_text(still, contrasts(still))


def test_nothing_is_said_where_nothing_can_be() -> None:
    far = [sweep(), sweep(labels="paper", pool="paper-pool")]
    assert contrasts(far) == []
    assert contrast_text(far, []).startswith("No two of the sweeps differ in one thing alone")
    apart = sweeps_of([row(NAME), row("dirgnn-line-none", labels="paper")])
    assert contrasts(apart) == []
    # Without the highlighted configuration another that both have is shown.
    others = sweeps_of([row("dirgnn-line-none", labels=name) for name in ("interpbench", "paper")])
    found = contrasts(others)
    assert "| 0.825 | 0.825 | 0.825 | 0.000 | 1 |" in contrast_table(found)
    assert "most like the paper" not in contrast_text(others, found)
