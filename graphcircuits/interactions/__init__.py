"""How edges act together: the paper's appendix "Shared-Target Edge Interactions".

1. `edge_interactions` takes whole edges, wherever they are. The effect of a set of edges is the
   loss when they are corrupted minus the loss of the clean run; the interaction of two edges is
   their joint effect minus the two single effects. Masked runs give it.
2. `SharedRead` holds edges into one reader t: its clean input u at each position, the change d that
   each edge brings there, and L(u), the loss when t reads u at one position p and everything
   downstream follows.
3. At such a read the interaction has three forms:
   `finite`    L(u + d1 + d2) - L(u + d1) - L(u + d2) + L(u), the definition
   `integral`  the same number as a double integral of d1 . Hessian(u + s d1 + r d2) . d2
   `local`     d1 . Hessian(u) . d2, right up to the third power of the changes
   Hessians are only ever multiplied by vectors. `interaction_matrix` has all pairs in one call.
4. `decay` shrinks the changes and measures how fast the local form becomes right.

The read input is the residual stream before the reader's norm, for every reader. A norm is part of
the downstream. Without norms the read map is linear, and the queries, keys, values, pre-activations
or logits that it leads to would give the same numbers.

The last two forms need a smooth downstream: with relu or an l1 loss they are refused.
"""

from graphcircuits.interactions.forms import (
    Decay,
    Effects,
    Integral,
    decay,
    edge_interactions,
    finite,
    first_order,
    integral,
    interaction_matrix,
    local,
)
from graphcircuits.interactions.read import SharedRead

__all__ = [
    "Decay",
    "Effects",
    "Integral",
    "SharedRead",
    "decay",
    "edge_interactions",
    "finite",
    "first_order",
    "integral",
    "interaction_matrix",
    "local",
]
