"""The source of a single subject, by its id."""

from pathlib import Path

from graphcircuits.cases.orders import Order, shipped_path
from graphcircuits.training.sources import SUFFIX, Source


def named_source(id: str, folder: str | Path | None = None) -> Source:
    """A subject by its id, such as ib-7.public.plain.0: of the folder if it has it, else shipped.

    It is in no fold: whoever names subjects says what is held out.
    """
    order = Order.parse(id)
    path = None if folder is None else Path(folder) / f"{id}{SUFFIX}"
    there = path is not None and path.is_file()
    if not there and not shipped_path(order).is_file():
        where = "ships" if folder is None else f"ships or is in {folder}"
        raise FileNotFoundError(
            f"no {order.fleet} subject of {order.case} {where}; build it with: graphcircuits build "
            f"{order.case} --fleet {order.fleet}, and name its folder."
        )
    return Source(order, str(path) if there else "", order.case, (order.case,), ())
