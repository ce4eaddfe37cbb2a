"""The paper's printed results on InterpBench's 16 held-out cases, as data.

1. `GCL_ROWS` are the 14 rows of the table under "Additional Experimental Results and
   Ablations", by our names: score in cross-validation, five quantiles over cases, and how far each
   varies over five seeds.
2. `EXPLAINER` is its PGExplainer; `BASELINES` are the rows that it takes from figure 9 of
   InterpBench, without seeds.
3. `PUBLISHED` is all of it. `HIGHLIGHTED` are the eight methods that the paper's figure draws. For
   most of these the figure prints six digits, and whiskers and outliers, which are taken from it.

They were measured on InterpBench's weights, which are not those of our subjects.
"""

from dataclasses import dataclass

from lab.paper.sweep_rows import (
    CONNECTIVITIES,
    LEARNERS,
    TRANSFORMATIONS,
    configuration_parts,
)

PUBLISHED_TITLE = "Published figures, on InterpBench's weights"
ELIGIBLE = (9, 18)
"""Of the paper's 18 settings, the fewest and the most that one of its configurations finished."""
SETTINGS = 18
N_CASES, N_SEEDS = 16, 5


@dataclass(frozen=True, kw_only=True)
class Published:
    """Printed figures of a method."""

    method: str
    quantiles: tuple[float, ...]
    whiskers: tuple[float, float] | None = None
    """Where those of the box plot end; None where only the five quantiles are printed."""
    outliers: tuple[float, ...] = ()
    """Cases beyond the whiskers."""
    spread: tuple[float, ...] | None = None
    """Standard deviation of each quantile over five seeds, where the paper has one."""
    configuration: str | None = None
    """Our name of it, if it is one of the 14."""
    cross_validation: float | None = None

    @property
    def median(self) -> float:
        return self.quantiles[2]


def words(configuration: str) -> tuple[str, str, str]:
    """Method, graph transformation and connectivity of a configuration as the paper says it."""
    learner, transformation, connectivity = configuration_parts(configuration)
    return LEARNERS[learner], TRANSFORMATIONS[transformation], CONNECTIVITIES[connectivity]


def short_words(configuration: str) -> str:
    """A configuration in few words, as in the labels of the paper's figure."""
    learner, transformation, connectivity = configuration_parts(configuration)
    ends = {"observed": "", "none": ", no message passing", "complete": ", complete DAG"}
    return f"{LEARNERS[learner]}, {transformation} graph{ends[connectivity]}"


def _gcl(
    configuration: str,
    cross_validation: float,
    quantiles: tuple[float, ...],
    spread: tuple[float, ...],
    *,
    whiskers: tuple[float, float] | None = None,
    outliers: tuple[float, ...] = (),
) -> Published:
    return Published(
        method=f"GCL, {short_words(configuration)}",
        configuration=configuration,
        cross_validation=cross_validation,
        quantiles=quantiles,
        spread=spread,
        whiskers=whiskers,
        outliers=outliers,
    )


GCL_ROWS = (
    _gcl(
        "factorized-line-observed",
        0.89,
        (0.605, 0.771, 0.849, 0.962, 0.988),
        (0.033, 0.022, 0.014, 0.003, 0.006),
    ),
    _gcl(
        "factorized-line-none",
        0.884,
        (0.525, 0.71, 0.833, 0.924, 0.992),
        (0.062, 0.027, 0.011, 0.027, 0.007),
    ),
    _gcl(
        "factorized-line-complete",
        0.912,
        (0.606, 0.82, 0.871, 0.922, 0.963),
        (0.045, 0.031, 0.015, 0.012, 0.006),
    ),
    _gcl(
        "factorized-incidence-observed",
        0.91,
        (0.699, 0.816, 0.887, 0.914, 0.965),
        (0.019, 0.017, 0.018, 0.023, 0.01),
    ),
    _gcl(
        "factorized-incidence-none",
        0.819,
        (0.38, 0.49, 0.506, 0.546, 0.638),
        (0.098, 0.132, 0.136, 0.135, 0.103),
    ),
    _gcl(
        "factorized-incidence-complete",
        0.914,
        (0.574, 0.806, 0.872, 0.915, 0.965),
        (0.091, 0.025, 0.019, 0.017, 0.017),
    ),
    _gcl(
        "dirgnn-line-observed",
        0.943,
        (0.712245, 0.860784, 0.902357, 0.941667, 0.996078),
        (0.009, 0.015, 0.011, 0.008, 0.005),
        whiskers=(0.763889, 0.996078),
        outliers=(0.712245,),
    ),
    _gcl(
        "dirgnn-line-none",
        0.883,
        (0.557, 0.741, 0.825, 0.964, 0.992),
        (0.045, 0.009, 0.012, 0.015, 0.004),
        whiskers=(0.557, 0.992),
    ),
    _gcl(
        "dirgnn-incidence-observed",
        0.949,
        (0.748, 0.824, 0.876, 0.936, 0.996),
        (0.012, 0.008, 0.018, 0.005, 0.005),
    ),
    _gcl(
        "dirgnn-incidence-none",
        0.833,
        (0.628, 0.76, 0.846, 0.961, 0.99),
        (0.02, 0.018, 0.007, 0.021, 0.006),
    ),
    _gcl(
        "dagformer-line-observed",
        0.899,
        (0.675, 0.788, 0.831, 0.922, 0.976),
        (0.038, 0.033, 0.023, 0.027, 0.006),
    ),
    _gcl(
        "dagformer-line-none",
        0.883,
        (0.504, 0.718, 0.825, 0.919, 0.992),
        (0.033, 0.011, 0.026, 0.014, 0.004),
    ),
    _gcl(
        "dagformer-incidence-observed",
        0.908,
        (0.623, 0.802, 0.879, 0.916, 0.976),
        (0.052, 0.033, 0.035, 0.034, 0.008),
    ),
    _gcl(
        "dagformer-incidence-none",
        0.819,
        (0.677, 0.716, 0.821, 0.884, 0.898),
        (0.201, 0.073, 0.06, 0.066, 0.056),
    ),
)

EXPLAINER = Published(
    method="PGExplainer",
    cross_validation=0.732,
    quantiles=(0.668, 0.742572, 0.857979, 0.985529, 0.998039),
    whiskers=(0.668, 0.998039),
    spread=(0.041, 0.026, 0.011, 0.004, 0.0),
)

BASELINES = (
    Published(
        method="ACDC",
        quantiles=(0.441173, 0.839016, 0.95936, 0.987496, 1.0),
        whiskers=(0.794109, 1.0),
        outliers=(0.441173, 0.441173),
    ),
    Published(
        method="EAP-IG",
        quantiles=(0.411763, 0.766373, 0.910043, 0.986811, 1.0),
        whiskers=(0.47059, 1.0),
        outliers=(0.411763,),
    ),
    Published(
        method="SP, edge",
        quantiles=(0.313724, 0.763968, 0.884441, 1.0, 1.0),
        whiskers=(0.450974, 1.0),
        outliers=(0.313724,),
    ),
    Published(
        method="SP, node",
        quantiles=(0.156859, 0.678291, 0.851998, 0.928417, 0.970583),
        whiskers=(0.433337, 0.970583),
        outliers=(0.156859, 0.176468),
    ),
    Published(
        method="EAP",
        quantiles=(0.0, 0.0, 0.0, 0.393201, 0.989791),
        whiskers=(0.0, 0.936163),
        outliers=(0.989791,),
    ),
)

PUBLISHED = (*GCL_ROWS, EXPLAINER, *BASELINES)
BY_CONFIGURATION = {row.configuration: row for row in GCL_ROWS if row.configuration}
HIGHLIGHTED = (
    BY_CONFIGURATION["dirgnn-line-observed"],
    BY_CONFIGURATION["dirgnn-line-none"],
    EXPLAINER,
    *BASELINES,
)
OUR_NAMES = {
    "PGExplainer": "pgexplainer",
    "ACDC": "acdc",
    "EAP-IG": "eap-ig",
    "SP, edge": "sp-edge",
    "SP, node": "sp-node",
    "EAP": "eap",
}
"""Methods of the paper that are not learned from circuits, and what they are called here."""


# What the appendix "Computational Costs" says of localizing one circuit of one new subject and task

FORMULAS = (
    ("GCL", "W_feat + W_pred", "S_feat + S_pred"),
    ("EAP", "W_EAP, of the order of W_feat", "not stated"),
    (
        "EAP-IG, K points",
        "W_pre + sum of W_k over the K points + W_reduce",
        "S_pre + max of S_k over the K points + S_reduce, S_reduce = O(log K)",
    ),
    (
        "PGExplainer, subnetwork probing, U updates",
        "W_init + sum of W_u over the U updates + W_out",
        "S_init + sum of S_u over the U updates + S_out",
    ),
    (
        "ACDC, N edges examined",
        "W_pre + sum of W_j over the N edges",
        "S_pre + sum of S_j over the N edges",
    ),
)
"""Method, work, span."""
