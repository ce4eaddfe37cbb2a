"""Find the circuit of a task inside a transformer.

The public names are imported on first use, so `import graphcircuits` costs milliseconds and does
not load torch. Write `import graphcircuits as gc` in notebooks. docs/api.md lists the names.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphcircuits import rasp, tasks
    from graphcircuits.adapters.hf import from_hf
    from graphcircuits.adapters.load import load_model
    from graphcircuits.cases import case_ids, load_case
    from graphcircuits.cases.calls import Call
    from graphcircuits.cases.case import Case
    from graphcircuits.cases.claims import score_roles
    from graphcircuits.cases.collection import load_corpus
    from graphcircuits.cases.language import LanguageModel
    from graphcircuits.cases.multitask import MultiCase, load_multi, multi_ids
    from graphcircuits.cases.random_programs import random_ids
    from graphcircuits.certificates.certificate import Certificate
    from graphcircuits.certificates.certify import certify
    from graphcircuits.circuit import Circuit
    from graphcircuits.compare.bench import bench
    from graphcircuits.evaluation.auroc import auroc
    from graphcircuits.evaluation.curves import evaluate
    from graphcircuits.evaluation.evaluate import faithfulness, faithfulness_curve
    from graphcircuits.evaluation.localize import localize, refine
    from graphcircuits.graph import ComponentGraph
    from graphcircuits.methods import METHODS
    from graphcircuits.methods.nodes import node_scores
    from graphcircuits.methods.shipped import load_predictor
    from graphcircuits.rasp.compile import compile_program
    from graphcircuits.result.result import Result
    from graphcircuits.subject.files import load_transformer
    from graphcircuits.subject.transformer import Transformer, TransformerConfig
    from graphcircuits.task.pairs import Pairs
    from graphcircuits.training.train import train

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Call",
    "Case",
    "Certificate",
    "Circuit",
    "ComponentGraph",
    "LanguageModel",
    "MultiCase",
    "Pairs",
    "Result",
    "Transformer",
    "TransformerConfig",
    "auroc",
    "bench",
    "case_ids",
    "certify",
    "compile_program",
    "evaluate",
    "faithfulness",
    "faithfulness_curve",
    "from_hf",
    "load_case",
    "load_corpus",
    "load_model",
    "load_multi",
    "load_predictor",
    "load_transformer",
    "localize",
    "multi_ids",
    "node_scores",
    "random_ids",
    "rasp",
    "refine",
    "score_roles",
    "tasks",
    "train",
]

# Public name -> the module that defines it; a subpackage stands for itself.
_EXPORTS = {
    "Call": "graphcircuits.cases.calls",
    "Case": "graphcircuits.cases.case",
    "Certificate": "graphcircuits.certificates.certificate",
    "Circuit": "graphcircuits.circuit",
    "ComponentGraph": "graphcircuits.graph",
    "METHODS": "graphcircuits.methods",
    "LanguageModel": "graphcircuits.cases.language",
    "MultiCase": "graphcircuits.cases.multitask",
    "Pairs": "graphcircuits.task.pairs",
    "Result": "graphcircuits.result.result",
    "Transformer": "graphcircuits.subject.transformer",
    "TransformerConfig": "graphcircuits.subject.transformer",
    "auroc": "graphcircuits.evaluation.auroc",
    "bench": "graphcircuits.compare.bench",
    "case_ids": "graphcircuits.cases",
    "certify": "graphcircuits.certificates.certify",
    "compile_program": "graphcircuits.rasp.compile",
    "evaluate": "graphcircuits.evaluation.curves",
    "faithfulness": "graphcircuits.evaluation.evaluate",
    "faithfulness_curve": "graphcircuits.evaluation.evaluate",
    "from_hf": "graphcircuits.adapters.hf",
    "load_case": "graphcircuits.cases",
    "load_corpus": "graphcircuits.cases.collection",
    "load_model": "graphcircuits.adapters.load",
    "load_multi": "graphcircuits.cases.multitask",
    "load_predictor": "graphcircuits.methods.shipped",
    "load_transformer": "graphcircuits.subject.files",
    "localize": "graphcircuits.evaluation.localize",
    "multi_ids": "graphcircuits.cases.multitask",
    "node_scores": "graphcircuits.methods.nodes",
    "random_ids": "graphcircuits.cases.random_programs",
    "rasp": "graphcircuits.rasp",
    "refine": "graphcircuits.evaluation.localize",
    "score_roles": "graphcircuits.cases.claims",
    "tasks": "graphcircuits.tasks",
    "train": "graphcircuits.training.train",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_EXPORTS[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
