"""Examples of cases of the package, for studies and benchmarks that name them."""

from collections.abc import Sequence

from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, ReadProgress, read
from graphcircuits.training.sources import shipped_sources


def read_examples(
    ids: Sequence[str],
    config: TrainConfig,
    *,
    views: int | None = None,
    progress: ReadProgress | None = None,
) -> list[Example]:
    """Readings of cases of the package, `views` of each with other prompts, in the order given."""
    judged = not config.by_labels_alone
    result = read(shipped_sources(ids), config, views=views, judged=judged, progress=progress)
    if result.left_out:
        raise ValueError("; ".join(f"{id}: {why}" for id, why in result.left_out.items()))
    return result.examples
