"""The table of starts: by hand, and one subject through all of them."""

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.methods.eap import eap_ig
from lab.benchmarks.starts import JUDGE, compare, searches, table


class Entry:
    """What a corpus gives, for a shipped case."""

    case = load_case("ib-7")

    def subject(self) -> object:
        return self.case.subject()

    def pairs(self, n: int, seed: int) -> object:
        return self.case.pairs(n, seed)


def test_ratios_are_by_eap_ig() -> None:
    lines = table({JUDGE: [0.1, 0.2], "other": [0.05, 0.3]}).splitlines()
    assert lines[-1] == "| other | 0.1750 | 1.167 | 50% | 1.000 | 1.50 |"


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_one_subject_through_all_of_them() -> None:
    fold = Entry.case.fold
    assert fold is not None
    found = compare([Entry()], 8, [0.5, 0.75], fold)  # pyright: ignore[reportArgumentType]
    assert set(found) == set(searches([0.5, 0.75], fold))
    assert all(len(values) == 1 and values[0] >= 0 for values in found.values())


def test_paths_keep_the_best_edges_that_hang_together() -> None:
    subject, pairs = Entry.case.subject(), Entry.case.pairs(4, 0)
    own = searches([0.75], 0)
    scores = own[f"{JUDGE}, along paths"](subject, pairs)
    assert scores.shape == (subject.graph.n_edges,)
    plain = eap_ig(subject, pairs)
    assert not torch.equal(scores.argsort(), plain.argsort())
