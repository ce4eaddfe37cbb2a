"""Rows of a step: interchanges inside the circuit, patches outside it, cuts of free edges."""

import itertools

import torch

from graphcircuits.fleets.batch import FLOOR, PAD, draw_rows, gather, part_names
from graphcircuits.graph import ComponentGraph
from tests.fleets.fleets import MIXED, case_fleet, fleet_of

SUBJECTS, EXCHANGES = case_fleet()
FLEET = fleet_of(SUBJECTS)
DATA = gather(FLEET, EXCHANGES)
NAMES = part_names(FLEET)
ROWS, CUT_ROWS = 200, 40


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def test_parts_are_the_writers_of_the_graph() -> None:
    assert list(ComponentGraph(2, 4).writer_names[1:]) == NAMES


def test_gather_keeps_every_exchange_and_pads_the_rest() -> None:
    graph = ComponentGraph(2, 4)
    for s, exchange in enumerate(EXCHANGES):
        length = exchange.targets.shape[1]
        assert torch.equal(DATA.tokens[s, :, : length + 1], exchange.tokens)
        assert (DATA.tokens[s, :, length + 1 :] == PAD).all()
        assert torch.equal(DATA.targets[s, :, :length], exchange.targets.float())
        assert DATA.exists[s].tolist() == [pos < length for pos in range(FLEET.config.n_ctx - 1)]
        inside = set(itertools.compress(NAMES, DATA.inside[s].tolist()))
        assert inside == set(exchange.components)
        for row, name in enumerate(exchange.components):
            part = NAMES.index(name)
            assert torch.equal(DATA.base[s, part], exchange.base[row])
            assert torch.equal(DATA.source[s, part], exchange.source[row])
            assert torch.equal(DATA.swapped[s, part, :, :length], exchange.swapped[row].float())
            assert torch.equal(DATA.scored[s, part, :, :length], exchange.scored[row])
        assert not DATA.scored[s, :, :, length:].any()
        assert not DATA.scored[s, ~DATA.inside[s]].any()
        pairs = DATA.free[s].nonzero().tolist()
        free = {f"{graph.writer_names[w]}->{graph.reader_names[r]}" for r, w in pairs}
        assert free == set(graph.edge_names) - exchange.edges
    assert DATA.numerical.tolist() == [True, False, False]
    assert len({exchange.targets.shape[1] for exchange in EXCHANGES}) > 1, MIXED


def test_take_is_the_data_of_those_subjects() -> None:
    some = DATA.take(torch.tensor([2, 0]))
    alone = gather(fleet_of([SUBJECTS[2], SUBJECTS[0]]), [EXCHANGES[2], EXCHANGES[0]])
    for name in ("inside", "base", "free", "numerical"):
        assert torch.equal(getattr(some, name), getattr(alone, name))
    assert torch.equal(some.targets[0], DATA.targets[2])


def test_rows_are_what_they_say() -> None:
    rows = draw_rows(DATA, torch.ones(DATA.inside.shape), ROWS, CUT_ROWS, generator())
    half = ROWS // 2
    assert rows.strict.tolist() == [row >= half for row in range(ROWS)]
    for s, exchange in enumerate(EXCHANGES):
        length = exchange.targets.shape[1]
        answer = {
            tuple(xs): y for xs, y in zip(exchange.tokens.tolist(), exchange.targets, strict=True)
        }
        own_tokens, own_donors = (
            x[s, :, : length + 1].tolist() for x in (rows.tokens, rows.donors)
        )
        for row in range(ROWS):
            parts = list(itertools.compress(NAMES, rows.patched[s, row].tolist()))
            clean, donor = own_tokens[row], own_donors[row]
            assert torch.equal(rows.donor_targets[s, row, :length], answer[tuple(donor)].float())
            if row >= half:
                assert parts
                assert not set(parts) & set(exchange.components)
                assert torch.equal(rows.targets[s, row, :length], answer[tuple(clean)].float())
                assert torch.equal(rows.scored[s, row], DATA.exists[s])
                continue
            (part,) = parts
            which = exchange.components.index(part)
            pairs = zip(exchange.base[which], exchange.source[which], strict=True)
            drawn = [
                pair
                for pair, (base, source) in enumerate(pairs)
                if exchange.tokens[base].tolist() == clean
                and exchange.tokens[source].tolist() == donor
            ]
            assert any(
                torch.equal(rows.targets[s, row, :length], exchange.swapped[which, pair].float())
                and torch.equal(rows.scored[s, row, :length], exchange.scored[which, pair])
                for pair in drawn
            )
        counts = rows.patched[s, half:].sum(-1)
        assert (counts[1::2] == 1).all()
        assert counts[::2].float().mean() > 2


def test_cuts_are_of_free_edges_only() -> None:
    rows = draw_rows(DATA, torch.ones(DATA.inside.shape), ROWS, CUT_ROWS, generator())
    assert not (rows.cut & ~DATA.free[:, None]).any()
    share = rows.cut.sum((2, 3)) / DATA.free.sum((1, 2))[:, None]
    by_kind = share.unflatten(1, (-1, 4)).mean(1)
    assert (by_kind[:, :2] == 1).all()
    torch.testing.assert_close(by_kind[:, 2], torch.full((3,), 0.5), rtol=0, atol=0.05)
    torch.testing.assert_close(by_kind[:, 3], torch.full((3,), 0.1), rtol=0, atol=0.03)
    for s, exchange in enumerate(EXCHANGES):
        own = rows.cut_tokens[s, :, : exchange.tokens.shape[1]]
        places = (own[:, None] == exchange.tokens).all(-1).int().argmax(1)
        assert torch.equal(own, exchange.tokens[places])
        length = exchange.targets.shape[1]
        assert torch.equal(rows.cut_targets[s, :, :length], exchange.targets[places].float())


def test_components_that_are_wrong_come_more_often() -> None:
    errors = torch.zeros(DATA.inside.shape)
    m0, outside = NAMES.index("m0"), NAMES.index("a1.h3")
    errors[1, [m0, outside]] = 1.0
    assert DATA.inside[1, m0]
    assert not DATA.inside[1, outside]
    rows = draw_rows(DATA, errors, 4000, 1, generator())
    inner, outer = rows.patched[1, :2000], rows.patched[1, 2001::2]
    others = DATA.inside[1].sum() - 1
    share = 1 / (1 + FLOOR * others)
    assert abs(inner[:, m0].float().mean() - share) < 0.03
    others = (~DATA.inside[1]).sum() - 1
    share = 1 / (1 + FLOOR * others)
    assert abs(outer[:, outside].float().mean() - share) < 0.04


def test_one_seed_gives_one_step_and_copies_are_equal() -> None:
    errors = torch.ones(DATA.inside.shape)
    first, again = (draw_rows(DATA, errors, 8, 4, generator()) for _ in range(2))
    other = draw_rows(DATA, errors, 8, 4, torch.Generator().manual_seed(9))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    again.copy_(other)
    assert torch.equal(again.patched, other.patched)
    assert torch.equal(again.cut, other.cut)
