"""Orders: their ids, and what is no order."""

import re

import pytest

from graphcircuits.corpus.orders import Order

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
