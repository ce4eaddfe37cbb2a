"""An order: which subject is meant, of which case, trained how, in which architecture, from which
seed.

`Order.id` names it, and its file; `Order.parse` reads that name. A planted subject of the plain
architecture goes by the id of its case, whatever its seed: that is what shipped first, and a folder
holds one of them. So does a planted language model, of which there is one each. All others are
called `case.fleet.architecture.seed`.
"""

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from graphcircuits.cases import FAMILIES, LANGUAGE, LANGUAGE_MODELS
from graphcircuits.cases.architectures import find_architecture
from graphcircuits.fleets.recipes import FLEETS, check_fleet
from graphcircuits.rasp.load import vocab_text

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case


@dataclass(frozen=True, order=True)
class Order:
    """All that is needed to make a subject again."""

    case: str
    fleet: str = "planted"
    architecture: str = "plain"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.case.partition("-")[0] == LANGUAGE_MODELS:
            if self.fleet not in ("planted", LANGUAGE):
                raise ValueError(
                    f"{self.case} is a planted language model, and there is no {self.fleet} one."
                )
            object.__setattr__(self, "fleet", LANGUAGE)
        else:
            check_fleet(self.fleet)
        find_architecture(self.architecture)
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}.")

    @property
    def id(self) -> str:
        """What the subject goes by, and the name of its file."""
        if (self.fleet, self.architecture) in (("planted", "plain"), (LANGUAGE, "plain")):
            return self.case
        return f"{self.case}.{self.fleet}.{self.architecture}.{self.seed}"

    @classmethod
    def parse(cls, text: str) -> "Order":
        """The order of an id."""
        match text.split("."):
            case [case] if case:
                return cls(case)
            case [case, fleet, architecture, seed] if case and seed.isdecimal() and seed.isascii():
                return cls(case, fleet, architecture, int(seed))
        raise ValueError(
            "a subject is named by its case, such as ib-3, or as case.fleet.architecture.seed, "
            f"such as ib-3.natural.llama.0; got {text!r}."
        )


def shipped_path(order: Order) -> Path:
    """Where in the package the subject lies, if it is shipped."""
    listed = order.id == order.case and order.case.partition("-")[0] in FAMILIES
    return _folder(order.fleet, listed=listed) / f"{order.id}.safetensors"


def shipped_orders(fleet: str | None = None) -> list[Order]:
    """The subjects in the package, or those of one fleet, sorted."""
    folders = {
        _folder(one, listed=listed)
        for one in (*FLEETS, LANGUAGE)
        if fleet in (None, one)
        for listed in (True, False)
    }
    paths = (path for folder in folders for path in folder.glob("*.safetensors"))
    return sorted(Order.parse(path.name.removesuffix(".safetensors")) for path in paths)


def find_shipped(case: "Case", order: Order, *, any_architecture: bool) -> Order:
    """The order of a subject that is in the package: this one, or with `any_architecture` the only
    one of its fleet and seed. Otherwise an error that says how to build it."""
    if shipped_path(order).is_file():
        return order
    there = [one for one in shipped_orders() if one.case == order.case]
    fitting = [one for one in there if (one.fleet, one.seed) == (order.fleet, order.seed)]
    if any_architecture and len(fitting) == 1:
        return fitting[0]
    what = f"for case {case.id!r}" if order.id == order.case else order.id
    others = f"; there are {', '.join(one.id for one in there)}" if there else ""
    raise FileNotFoundError(
        f"no subject {what} is shipped{others}; build it with: graphcircuits build "
        + _build_words(case, order)
    )


def _build_words(case: "Case", order: Order) -> str:
    """What follows `graphcircuits build` to make the subject."""
    usual = Order(order.case)
    names = ("fleet", "architecture", "seed")
    changed = [name for name in names if getattr(order, name) != getattr(usual, name)]
    options = "".join(f" --{name} {getattr(order, name)}" for name in changed)
    if case.family != "own":
        return order.case + options
    # Where the file of a user's program is, only the user knows.
    vocab = shlex.quote(vocab_text(case.vocab))
    causal = " --causal" if case.causal else ""
    return (
        f"--program FILE.py:NAME --vocab {vocab} --max-seq-len {case.max_seq_len}{causal}{options}"
        ", and read what it writes with graphcircuits.load_transformer, or train it here with "
        "case.train().subject"
    )


def _folder(fleet: str, *, listed: bool) -> Path:
    """The listed cases' planted, plain subjects have a folder of their own; each fleet has one."""
    folder = "subjects" if listed and fleet == "planted" else f"fleets/{fleet}"
    return Path(str(files("graphcircuits").joinpath(f"data/{folder}")))
