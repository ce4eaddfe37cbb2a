"""An order: which subject is meant, of which case, trained how, in which architecture, from which
seed.

`Order.id` names it, and its file; `Order.parse` reads that name. A planted subject of the plain
architecture goes by the id of its case, whatever its seed: that is what shipped first, and a folder
holds one of them. All others are called `case.fleet.architecture.seed`. `shipped_orders` lists what
is in the package.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from graphcircuits.cases import FAMILIES
from graphcircuits.cases.architectures import find_architecture
from graphcircuits.fleets.recipes import FLEETS, check_fleet


@dataclass(frozen=True, order=True)
class Order:
    """All that is needed to make a subject again."""

    case: str
    fleet: str = "planted"
    architecture: str = "plain"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fleet(self.fleet)
        find_architecture(self.architecture)
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}.")

    @property
    def id(self) -> str:
        """What the subject goes by, and the name of its file."""
        if (self.fleet, self.architecture) == ("planted", "plain"):
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
    return sorted(order for one in FLEETS if fleet in (None, one) for order in _shipped(one))


def _shipped(fleet: str) -> Iterator[Order]:
    for folder in {_folder(fleet, listed=listed) for listed in (True, False)}:
        for path in folder.glob("*.safetensors"):
            yield Order.parse(path.name.removesuffix(".safetensors"))


def _folder(fleet: str, *, listed: bool) -> Path:
    """The listed cases' planted, plain subjects have a folder of their own; each fleet has one."""
    folder = "subjects" if listed and fleet == "planted" else f"fleets/{fleet}"
    return Path(str(files("graphcircuits").joinpath(f"data/{folder}")))
