"""Orders: their ids, what is no order, and which of them the package has subjects of."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases import load_case
from graphcircuits.cases.multitask import load_multi
from graphcircuits.cases.orders import Order, shipped_orders, shipped_path
from graphcircuits.subject.files import save_transformer
from tests.cases.test_case import own_case
from tests.subjects import make_subject

Ship = Callable[..., None]

NAMED = {
    "ib-3": Order("ib-3"),
    "rnd-17.natural.llama.0": Order("rnd-17", "natural", "llama"),
    "ib-3.public.plain.0": Order("ib-3", "public"),
    "mt-7.planted.llama-gqa.12": Order("mt-7", "planted", "llama-gqa", 12),
}


@pytest.mark.parametrize("id", NAMED)
def test_an_order_is_read_from_its_id(id: str) -> None:
    assert NAMED[id].id == id
    assert Order.parse(id) == NAMED[id]


def test_a_plain_planted_subject_goes_by_its_case_whatever_the_seed() -> None:
    assert Order("ib-3", seed=5).id == "ib-3"
    assert Order.parse("ib-3.planted.plain.5") == Order("ib-3", seed=5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ib-3.wild.plain.0", "unknown fleet 'wild'; there are planted, public, natural."),
        ("ib-3.natural.gpt3.0", "unknown architecture 'gpt3'; choose from plain, relu, rotary, "),
        *(
            (text, "a subject is named by its case, such as ib-3, or as case.fleet.architecture.s")
            for text in (
                "",
                "ib-3.natural",
                "ib-3.natural.llama.-1",
                "ib-3.natural.llama.x",
                "....",
            )
        ),
    ],
)
def test_what_is_no_order_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as caught:
        Order.parse(text)
    assert "\n" not in str(caught.value)


def test_seeds_are_not_negative() -> None:
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        Order("ib-3", seed=-1)


def test_orders_sort_by_case_first() -> None:
    orders = [Order("b"), Order("a", seed=1), Order("a", "natural"), Order("a")]
    assert [(order.case, order.fleet, order.seed) for order in sorted(orders)] == [
        ("a", "natural", 0),
        ("a", "planted", 0),
        ("a", "planted", 1),
        ("b", "planted", 0),
    ]


# What is shipped


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """An empty package, and what puts subjects into it."""
    monkeypatch.setattr("graphcircuits.cases.orders.files", lambda _: tmp_path)

    def put(*ids: str) -> None:
        for id in ids:
            order = Order.parse(id)
            report = {**vars(order), "mark": id}
            save_transformer(shipped_path(order), make_subject(), meta={"report": report})

    return put


def marks(case: Any, *wanted: Any) -> str:
    return case.report(*wanted)["mark"]


def test_subjects_lie_by_fleet_and_are_found(ship: Ship, tmp_path: Path) -> None:
    assert shipped_orders() == []
    ids = ("ib-3", "ib-3.planted.gpt2.0", "ib-3.natural.llama.0", "ib-3.natural.plain.4", "mt-0")
    ids += ("rnd-5",)
    ship(*ids, "ib-2.natural.rms.0")
    paths = {str(path.relative_to(tmp_path / "data")) for path in tmp_path.rglob("*.safetensors")}
    assert paths == {
        "subjects/ib-3.safetensors",
        "fleets/planted/mt-0.safetensors",
        "fleets/planted/rnd-5.safetensors",
        "fleets/planted/ib-3.planted.gpt2.0.safetensors",
        "fleets/natural/ib-3.natural.llama.0.safetensors",
        "fleets/natural/ib-3.natural.plain.4.safetensors",
        "fleets/natural/ib-2.natural.rms.0.safetensors",
    }
    assert {order.id for order in shipped_orders()} == {*ids, "ib-2.natural.rms.0"}
    natural = [order.id for order in shipped_orders("natural")]
    assert natural == ["ib-2.natural.rms.0", "ib-3.natural.llama.0", "ib-3.natural.plain.4"]
    case = load_case("ib-3")
    assert (
        marks(case) == marks(case, "planted", "plain") == marks(case, "planted", None, 5) == ids[0]
    )
    assert marks(case, "planted", "gpt2") == ids[1]
    # The only architecture there is; plain where there is one of that seed.
    assert marks(case, "natural") == marks(case, "natural", "llama") == ids[2]
    assert marks(case, "natural", None, 4) == ids[3]
    subject = case.subject("natural")
    assert (subject.case, subject.fleet) == ("ib-3", "natural")
    assert case.subject().fleet == "planted"
    # A task has the subject of its model.
    task = load_multi("mt-0").tasks[0]
    assert (marks(task), task.subject().case) == ("mt-0", task.id)


def test_what_is_not_shipped_is_built_by_a_command(ship: Ship) -> None:
    ship("ib-3.natural.llama.0", "ib-3.natural.gpt2.0")
    case = load_case("ib-3")
    there = "; there are ib-3.natural.gpt2.0, ib-3.natural.llama.0"
    begins = "build it with: graphcircuits build"
    expected = {
        ("natural",): f"no subject ib-3.natural.plain.0 is shipped{there}; {begins} ib-3 "
        "--fleet natural",
        ("natural", "rms", 2): f"no subject ib-3.natural.rms.2 is shipped{there}; {begins} ib-3 "
        "--fleet natural --architecture rms --seed 2",
        ("planted",): f"no subject for case 'ib-3' is shipped{there}; {begins} ib-3",
    }
    for wanted, said in expected.items():
        for ask in (case.subject, case.report):
            with pytest.raises(FileNotFoundError) as caught:
                ask(*wanted)
            assert str(caught.value) == said
    with pytest.raises(
        FileNotFoundError, match=r"--max-seq-len 4 --fleet public, and read what it"
    ):
        own_case().subject("public")
    with pytest.raises(ValueError, match="unknown fleet 'wild'; there are planted, public, nat"):
        case.subject("wild")
    with pytest.raises(ValueError, match="unknown architecture 'bert'; choose from plain"):
        case.subject("natural", "bert")
