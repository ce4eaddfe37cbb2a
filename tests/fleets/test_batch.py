"""Rows of a step: interchanges inside the circuit, patches outside it, cuts of free edges."""

import itertools
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.prepare import case_exchange
from graphcircuits.fleets import batch as module
from graphcircuits.fleets.batch import (
    FLOOR,
    PAD,
    Errors,
    FleetData,
    PatchedRows,
    Rows,
    component_names,
    draw_rows,
    gather,
)
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.graph import ComponentGraph
from tests.fleets.fleets import MIXED, case_fleet, fleet_of, one_task

SUBJECTS, EXCHANGES = case_fleet()
OTHERS = [case_exchange(load_case(id), 64, 16, 9) for id in MIXED]
"""The same programs on other inputs, as tasks beside the first ones."""
TASKS = [[EXCHANGES[0], OTHERS[0]], [EXCHANGES[1]], [EXCHANGES[2], OTHERS[2], OTHERS[2]]]
FLEET = fleet_of(SUBJECTS)
DATA = gather(FLEET, TASKS)
NAMES = component_names(FLEET)
ROWS, CUT_ROWS = 200, 40


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def test_parts_are_the_writers_of_the_graph() -> None:
    assert list(ComponentGraph(2, 4).writer_names[1:]) == NAMES


def test_gather_keeps_every_exchange_and_pads_the_rest() -> None:
    graph = ComponentGraph(2, 4)
    for s, t in itertools.product(range(3), range(3)):
        if t >= len(TASKS[s]):
            assert not DATA.inside[s, t].any()
            assert not DATA.scored[s, t].any()
            continue
        exchange = TASKS[s][t]
        length = exchange.targets.shape[1]
        assert torch.equal(DATA.tokens[s, t, :, : length + 1], exchange.tokens)
        assert (DATA.tokens[s, t, :, length + 1 :] == PAD).all()
        assert torch.equal(DATA.targets[s, t, :, :length], exchange.targets.float())
        assert DATA.answers[s, t].tolist() == [
            pos < length for pos in range(FLEET.config.n_ctx - 1)
        ]
        inside = set(itertools.compress(NAMES, DATA.inside[s, t].tolist()))
        assert inside == set(exchange.components)
        for row, name in enumerate(exchange.components):
            at = (s, t, NAMES.index(name))
            assert torch.equal(DATA.base[at], exchange.base[row])
            assert torch.equal(DATA.source[at], exchange.source[row])
            assert torch.equal(DATA.swapped[at][:, :length], exchange.swapped[row].float())
            assert torch.equal(DATA.scored[at][:, :length], exchange.scored[row])
        assert not DATA.scored[s, t, :, :, length:].any()
        assert not DATA.scored[s, t, ~DATA.inside[s, t]].any()
        pairs = DATA.free[s, t].nonzero().tolist()
        free = {f"{graph.writer_names[w]}->{graph.reader_names[r]}" for r, w in pairs}
        assert free == set(graph.edge_names) - exchange.edges
    assert DATA.numerical.tolist() == [True, False, False]
    assert DATA.n_tasks.tolist() == [2, 1, 3]
    assert DATA.real.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert len({exchange.targets.shape[1] for exchange in EXCHANGES}) > 1, MIXED


def test_take_is_the_data_of_those_subjects() -> None:
    some = DATA.take(torch.tensor([2, 0]))
    alone = gather(fleet_of([SUBJECTS[2], SUBJECTS[0]]), [TASKS[2], TASKS[0]])
    for name in ("inside", "base", "free", "numerical", "n_tasks"):
        assert torch.equal(getattr(some, name), getattr(alone, name))
    assert torch.equal(some.targets[0], DATA.targets[2])


def fewer(exchange: Exchange, inputs: int = 64, pos: int = 99) -> Exchange:
    """The same with fewer inputs or positions."""
    return replace(
        exchange,
        tokens=exchange.tokens[:inputs, : pos + 1],
        targets=exchange.targets[:inputs, :pos],
        swapped=exchange.swapped[..., :pos],
        scored=exchange.scored[..., :pos],
    )


@pytest.mark.parametrize(
    ("exchanges", "message"),
    [
        ([[EXCHANGES[0]], []], "every subject needs at least one task, got none for number 1"),
        (
            [[EXCHANGES[0]], [fewer(EXCHANGES[1], inputs=5)]],
            "equally many inputs and interchanges, got 5 with 16 and 64 with 16",
        ),
        (
            [[EXCHANGES[0], fewer(EXCHANGES[0], pos=2)]],
            "number 0 need inputs of one length and .* got 2 tokens to numbers and . tokens to num",
        ),
        (
            [[EXCHANGES[0]], [EXCHANGES[1], replace(EXCHANGES[1], targets=OTHERS[1].targets / 2)]],
            "subject number 1 need .* one kind, got . tokens to classes and . tokens to numbers",
        ),
    ],
)
def test_exchanges_that_do_not_go_together_are_refused(
    exchanges: list[list[Exchange]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gather(fleet_of(SUBJECTS[: len(exchanges)]), exchanges)


def whole(rows: Rows) -> PatchedRows:
    assert rows.patched is not None
    return rows.patched


def drawn(data: FleetData = DATA, rows: int = ROWS, cut_rows: int = CUT_ROWS) -> Rows:
    return draw_rows(data, Errors.unknown(data), rows, cut_rows, generator())


def inputs_of(exchange: Exchange) -> dict[tuple[int, ...], Tensor]:
    """The right answers by input."""
    tokens = map(tuple, exchange.tokens.tolist())
    return dict(zip(tokens, exchange.targets.float(), strict=True))


def test_rows_are_what_they_say() -> None:
    """One task per subject: every row is a pair of the exchange, or two of its inputs."""
    rows = drawn(gather(FLEET, one_task(EXCHANGES)))
    run, half = whole(rows), ROWS // 2
    assert run.strict.tolist() == [row >= half for row in range(ROWS)]
    for s, exchange in enumerate(EXCHANGES):
        length = exchange.targets.shape[1]
        answer = inputs_of(exchange)
        own_tokens, own_donors = (x[s, :, : length + 1].tolist() for x in (run.tokens, rows.donors))
        for row in range(ROWS):
            components = list(itertools.compress(NAMES, run.components[s, row].tolist()))
            clean, donor = own_tokens[row], own_donors[row]
            assert torch.equal(rows.targets[s, row, :length], answer[tuple(donor)])
            if row >= half:
                assert components
                assert not set(components) & set(exchange.components)
                assert torch.equal(run.targets[s, row, :length], answer[tuple(clean)])
                assert torch.equal(run.scored[s, row], DATA.answers[s, 0])
                continue
            (component,) = components
            which = exchange.components.index(component)
            pairs = zip(exchange.base[which], exchange.source[which], strict=True)
            drawn_pairs = [
                pair
                for pair, (base, source) in enumerate(pairs)
                if exchange.tokens[base].tolist() == clean
                and exchange.tokens[source].tolist() == donor
            ]
            assert any(
                torch.equal(run.targets[s, row, :length], exchange.swapped[which, pair].float())
                and torch.equal(run.scored[s, row, :length], exchange.scored[which, pair])
                for pair in drawn_pairs
            )
        counts = run.components[s, half:].sum(-1)
        assert (counts[1::2] == 1).all()
        assert counts[::2].float().mean() > 2


def marked(count: int) -> FleetData:
    """Tasks told apart: all tokens of an input are its subject's and task's number."""
    numbers = torch.arange(3 * count).view(3, count, 1, 1)
    tasks = [[exchange] * (s + 1) for s, exchange in enumerate(EXCHANGES)]
    data = gather(FLEET, tasks)
    return replace(
        data,
        tokens=numbers.expand_as(data.tokens),
        targets=numbers.expand_as(data.targets).float(),
        swapped=numbers[..., None].expand_as(data.swapped).float(),
        # Each task has another circuit: its number of components, from the first one on.
        inside=torch.arange(len(NAMES)) < torch.arange(1, count + 1)[:, None].expand(3, -1, -1),
        free=torch.arange(10) < torch.arange(count)[:, None, None].expand(3, -1, 27, -1),
    )


def test_base_source_patch_and_cut_of_a_row_are_of_one_task() -> None:
    data = marked(3)
    rows = drawn(data, rows=400, cut_rows=200)
    run, cut = whole(rows), rows.cut
    assert cut is not None
    task = rows.donors[..., 0] - 3 * torch.arange(3)[:, None]
    assert [set(own.tolist()) for own in task] == [{0}, {0, 1}, {0, 1, 2}]
    for tokens in (rows.donors, run.tokens):
        assert (tokens == rows.donors[..., :1]).all()
    for targets in (rows.targets, run.targets):
        assert (targets == rows.donors[..., :1]).all()
    inner, outer = (
        run.components[:, :200].int().argmax(-1),
        run.components[:, 200:].int().argmax(-1),
    )
    assert (run.components[:, :200].sum(-1) == 1).all()
    assert (inner <= task[:, :200]).all()
    assert (outer > task[:, 200:]).all()
    assert (inner == task[:, :200]).any()
    assert (outer == task[:, 200:] + 1).any()
    assert (cut.tokens == rows.donors[:, :200, :1]).all()
    assert (cut.targets == rows.donors[:, :200, :1]).all()
    assert torch.equal(cut.edges[:, ::4].any(2).sum(-1), task[:, :200:4])


def test_tasks_that_are_wrong_come_more_often_and_padding_never() -> None:
    data = marked(3)
    errors = Errors.unknown(data)
    errors.task[2] = torch.tensor([0.0, 0.2, 1.0])
    errors.task[1] = torch.tensor([0.3, 0.1, 1.0])
    rows = draw_rows(data, errors, 6000, 0, generator(), patched=False)
    assert rows.patched is None
    assert rows.cut is None
    numbers = rows.donors[..., 0]
    assert set(numbers[0].tolist()) == {0}
    shares = [
        [(numbers[s] == 3 * s + task).float().mean().item() for task in range(3)] for s in (1, 2)
    ]
    assert shares[0] == pytest.approx([0.75, 0.25, 0], abs=0.02)
    total = FLOOR + 1.2
    assert shares[1] == pytest.approx([FLOOR / total, 0.2 / total, 1 / total], abs=0.02)


def test_cuts_are_of_free_edges_only() -> None:
    data = gather(FLEET, one_task(EXCHANGES))
    cut = drawn(data).cut
    assert cut is not None
    assert not (cut.edges & ~data.free).any()
    share = cut.edges.sum((2, 3)) / data.free.sum((2, 3))
    by_kind = share.unflatten(1, (-1, 4)).mean(1)
    assert (by_kind[:, :2] == 1).all()
    torch.testing.assert_close(by_kind[:, 2], torch.full((3,), 0.5), rtol=0, atol=0.05)
    torch.testing.assert_close(by_kind[:, 3], torch.full((3,), 0.1), rtol=0, atol=0.03)
    for s, exchange in enumerate(EXCHANGES):
        own = cut.tokens[s, :, : exchange.tokens.shape[1]]
        places = (own[:, None] == exchange.tokens).all(-1).int().argmax(1)
        assert torch.equal(own, exchange.tokens[places])
        length = exchange.targets.shape[1]
        assert torch.equal(cut.targets[s, :, :length], exchange.targets[places].float())


def test_components_that_are_wrong_come_more_often() -> None:
    data = gather(FLEET, one_task(EXCHANGES))
    errors = Errors(torch.ones(3, 1), torch.zeros(data.inside.shape))
    m0, outside = NAMES.index("m0"), NAMES.index("a1.h3")
    errors.component[1, 0, [m0, outside]] = 1.0
    inside = data.inside[1, 0]
    assert inside[m0]
    assert not inside[outside]
    components = whole(draw_rows(data, errors, 4000, 1, generator())).components
    inner, outer = components[1, :2000], components[1, 2001::2]
    share = 1 / (1 + FLOOR * (inside.sum() - 1))
    assert abs(inner[:, m0].float().mean() - share) < 0.03
    share = 1 / (1 + FLOOR * ((~inside).sum() - 1))
    assert abs(outer[:, outside].float().mean() - share) < 0.04


def test_what_is_not_allowed_is_never_picked() -> None:
    """Bounds are whole numbers, so that no rounding leaves it a sliver."""
    weight = torch.tensor([0.0, 0.3, 0.0, 1.0, 0.0])
    allowed = torch.tensor([False, True, True, True, False])
    bounds = module._bounds(weight, allowed)
    assert bounds.diff(prepend=bounds[:1]).tolist()[::4] == [0, 0]
    picked = module._pick(bounds.expand(2, 8000, -1), generator())
    shares = picked.flatten().bincount(minlength=5) / 16000
    assert shares[[0, 4]].tolist() == [0, 0]
    expected = torch.tensor([0.3, FLOOR, 1.0]) / (1.3 + FLOOR)
    torch.testing.assert_close(shares[1:4], expected, rtol=0, atol=0.015)
    nothing = module._bounds(weight, torch.zeros(5, dtype=torch.bool))
    assert (module._pick(nothing.expand(1, 4, -1), generator()) == 4).all()


def test_one_seed_gives_one_step() -> None:
    errors = Errors.unknown(DATA)
    first, again = (draw_rows(DATA, errors, 8, 4, generator()) for _ in range(2))
    other = draw_rows(DATA, errors, 8, 4, torch.Generator().manual_seed(9))
    for one, two in ((first.patched, again.patched), (first.cut, again.cut)):
        assert one is not None
        assert two is not None
        assert all(torch.equal(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))
    assert torch.equal(first.donors, again.donors)
    assert not torch.equal(first.donors, other.donors)
