"""How the families of Hugging Face `transformers` name and shape their parts.

Each gives maps for a configuration and for the weights of one layer, both ways: `gpt` those of
GPT-2 and GPT-NeoX, `llama` those of Llama and all that came of it, `rotary` what they say about
rotary positions.
"""

from graphcircuits.adapters.hf_families.family import Family, Tensors, load_transformers
from graphcircuits.adapters.hf_families.gpt import GPT2, GPT_NEOX
from graphcircuits.adapters.hf_families.llama import LLAMA_KIN

__all__ = ["FAMILIES", "Family", "Tensors", "load_transformers"]

FAMILIES = {"gpt2": GPT2, "gpt_neox": GPT_NEOX, **LLAMA_KIN}
"""By the model type in a configuration."""
