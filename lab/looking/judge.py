"""How many edges rankings of cases need, on prompts that none of them saw.

1. Cases are ranked by EAP-IG, by EAP-IG along paths, and by `gcl` without looking and with.
2. The best edges at sizes in equal ratios are judged by output, all cases of a group at once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.relaxed import ranks
from graphcircuits.methods.eap import eap_ig
from graphcircuits.predictor.looker import Looker
from graphcircuits.predictor.paths import along_paths
from lab.looking.cases import LookGroup, LookTraining, look_again, read_cases
from lab.looking.lessons import Job, Shop

SHARES = (0.8, 0.9, 0.95)
ENOUGH = 0.9
LOOKING, PLAIN, RIVAL, SEARCH = "gcl", "gcl without looking", "eap-ig+paths", "eap-ig"
SIZES = 48
"""At which rankings are judged."""
AT_ONCE = 8
"""Sizes that are judged together."""

Values = Float[Tensor, "case edge"]


def judge_job(shop: Shop, job: Job, lookers: Sequence[Looker]) -> Iterator[dict[str, Any]]:
    """What is found of each task: its `id`, its `kind`, and by method `edges` for ENOUGH of the
    output, the same for SHARES, and `log_area`."""
    config = shop.config
    lookers = [looker.to(shop.device) for looker in lookers]
    for group in read_cases(job, config, device=shop.device)[0]:
        by_label = {
            label: judged(group, values, config.read)
            for label, values in rankings(group, lookers, config).items()
        }
        for number, source in enumerate(group.sources):
            figures = {label: dict(found[number]) for label, found in by_label.items()}
            edges = {label: found[f"{ENOUGH:g}"] for label, found in figures.items()}
            yield {"id": source.id, "kind": source.kind, "edges": edges, "figures": figures}


def rankings(
    group: LookGroup, lookers: Sequence[Looker], config: LookTraining
) -> Mapping[str, Values]:
    """The rankings that are compared; those without looking alone where there are no lookers."""
    searched = torch.stack(
        [eap_ig(subject, pairs[: config.read]).to(group.starts) for subject, pairs in group.items]
    )
    values = group.starts
    found = {**group.others, SEARCH: searched, RIVAL: along_paths(searched, group.graph)}
    found[PLAIN] = values
    if not lookers:
        return found
    for _ in range(config.looker.rounds):
        values = look_again(group, values, lookers, config)
    return found | {LOOKING: values}


@torch.no_grad()
def judged(group: LookGroup, values: Values, read: int) -> list[Mapping[str, float]]:
    """Of each case the edges that its best ones need for SHARES of the output, and `log_area`.

    It is judged on the pairs behind the first `read`.
    """
    n_edges = group.graph.n_edges
    sizes = torch.tensor(
        sorted({round(n_edges ** (x / (SIZES - 1))) for x in range(SIZES)}), device=values.device
    )
    order, rows = ranks(values), slice(read, None)
    lacks = torch.cat(
        [
            group.stack.departure((order[:, None] < some[:, None]).to(values), rows)
            for some in sizes.split(AT_ONCE)
        ],
        1,
    )
    # The unit of a stack is the gap over all of its prompts.
    own_gap = (group.stack.ends[1] - group.stack.ends[0])[:, rows].mean(1)
    lacks = (lacks * (group.stack.gap / own_gap)[:, None]).cpu()
    x = sizes.cpu().double().log()
    figures = []
    for lack in lacks.double():
        own = {"log_area": float(torch.trapezoid(lack.clamp(0, 1), x) / x[-1])}
        for share in SHARES:
            short = (lack > 1 - share).nonzero().flatten()
            first = 0 if not len(short) else min(int(short[-1]) + 1, len(sizes) - 1)
            own[f"{share:g}"] = float(sizes[first])
        figures.append(own)
    return figures


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))
