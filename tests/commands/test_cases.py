"""`graphcircuits cases`: by id, by split, and random programs."""

import json

import pytest

from graphcircuits.cases.random_programs import random_ids
from tests.shell import Command, refused

pytestmark = pytest.mark.usefixtures("unchecked")


def test_cases_by_id(command: Command) -> None:
    rows = json.loads(command("cases", "rnd-6", "ib-3", "rnd-6", "--json").out)
    assert [row["id"] for row in rows] == ["rnd-6", "ib-3"]
    assert [row["group"] for row in rows] == ["ib-24", "ib-3"]
    assert (rows[0]["split"], rows[0]["fold"], rows[1]["fold"]) == ("pool", 1, None)
    assert "A random program, drawn from seed 6." in command("cases", "rnd-6").out


def test_random_cases(command: Command) -> None:
    rows = json.loads(command("cases", "--random", "3", "--layers", "2", "--json").out)
    assert [row["id"] for row in rows] == random_ids("pool", 3, layers=2)
    assert {row["split"] for row in rows} == {"pool"}
    ended = command("cases", "--random", "1", "--split", "test", "--layers", "2", "--json")
    assert [row["id"] for row in json.loads(ended.out)] == random_ids("test", 1, layers=2)


def test_words_that_do_not_go_together(command: Command) -> None:
    refused(command("cases", "rnd-5", "--split", "test"), "give ids or --split, not both.")
    refused(command("cases", "--layers", "3"), "--layers goes with --random.")
    refused(command("cases", "--random", "0"), "--random must be in 1..10000, got 0.")
    refused(command("cases", "--random", "2", "--layers", "9"), "--layers must be in 2..8, got 9.")
    refused(
        command("cases", "--random", "2", "--family", "ib"),
        "random programs are of no listed family; give --family or --random.",
    )
    refused(command("cases", "--random", "2", "--split", "paper"), "unknown split 'paper' of ran")
    refused(command("cases", "--family", "rnd"), "too many to list; graphcircuits.random_ids(")
    refused(command("cases", "rnd-01"), "unknown case 'rnd-01'; random programs are rnd-0, rnd-1")


@pytest.mark.parametrize("name", ["localize", "interact"])
def test_no_subject_of_a_random_program_is_shipped(command: Command, name: str) -> None:
    message = "no subject for case 'rnd-6' is shipped; build it with: graphcircuits build rnd-6"
    refused(command(name, "rnd-6"), message)
