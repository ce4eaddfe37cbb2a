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

# The public names of every module; a subpackage stands for itself.
_EXPORTS = {
    "graphcircuits.adapters.hf": "from_hf",
    "graphcircuits.adapters.load": "load_model",
    "graphcircuits.cases": "case_ids load_case",
    "graphcircuits.cases.calls": "Call",
    "graphcircuits.cases.case": "Case",
    "graphcircuits.cases.claims": "score_roles",
    "graphcircuits.cases.collection": "load_corpus",
    "graphcircuits.cases.language": "LanguageModel",
    "graphcircuits.cases.multitask": "MultiCase load_multi multi_ids",
    "graphcircuits.cases.random_programs": "random_ids",
    "graphcircuits.certificates.certificate": "Certificate",
    "graphcircuits.certificates.certify": "certify",
    "graphcircuits.circuit": "Circuit",
    "graphcircuits.compare.bench": "bench",
    "graphcircuits.evaluation.auroc": "auroc",
    "graphcircuits.evaluation.curves": "evaluate",
    "graphcircuits.evaluation.evaluate": "faithfulness faithfulness_curve",
    "graphcircuits.evaluation.localize": "localize refine",
    "graphcircuits.graph": "ComponentGraph",
    "graphcircuits.methods": "METHODS",
    "graphcircuits.methods.nodes": "node_scores",
    "graphcircuits.methods.shipped": "load_predictor",
    "graphcircuits.rasp": "rasp",
    "graphcircuits.rasp.compile": "compile_program",
    "graphcircuits.result.result": "Result",
    "graphcircuits.subject.files": "load_transformer",
    "graphcircuits.subject.transformer": "Transformer TransformerConfig",
    "graphcircuits.task.pairs": "Pairs",
    "graphcircuits.tasks": "tasks",
    "graphcircuits.training.train": "train",
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
