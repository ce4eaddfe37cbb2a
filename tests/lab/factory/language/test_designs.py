"""Models by name."""

import pytest

from graphcircuits.adapters.hf import from_hf
from lab.factory.language.designs import ARCHITECTURES, PLAN, Design
from lab.factory.language.tokens import TOKENIZERS


def test_the_plan_has_all_kinds() -> None:
    designs = [Design.parse(name) for name in PLAN]
    assert len(set(designs)) >= 12
    assert [design.name for design in designs] == list(PLAN)
    assert {design.architecture for design in designs} == set(ARCHITECTURES)
    assert {design.tokenizer for design in designs} == set(TOKENIZERS)
    assert {design.layers for design in designs} >= {2, 4, 6, 8}
    assert all(64 <= design.width <= 256 for design in designs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_are_as_their_names_say(architecture: str) -> None:
    design = Design.parse(f"{architecture}-2x64-bpe2k")
    model = design.model(50, 0)
    config = from_hf(model).config
    assert (config.n_layers, config.d_model, config.n_heads, config.n_ctx) == (2, 64, 4, 128)
    assert config.d_vocab == 50
    assert config.n_groups == (2 if architecture == "gqa" else 4)
    assert config.positions == ("learned" if architecture == "gpt2" else "rotary")
    assert config.parallel == (architecture == "neox")
    assert config.gated_mlp == (architecture in ("llama", "gqa"))
    assert config.norm == ("rms" if config.gated_mlp else "layer")
    assert config.tied_unembedding == (architecture != "neox")
    assert config.d_mlp == (168 if config.gated_mlp else 256)
    assert model.get_input_embeddings().padding_idx is None
    assert design.dropout == getattr(model.config, "resid_pdrop", 0.0)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("gpt2", r"a model is ARCHITECTURE-LAYERSxWIDTH-TOKENIZER, such as gpt2-4x.*, got 'gpt2'"),
        (
            "lama-2x64-chars",
            r"unknown architecture 'lama'; did you mean 'llama'\? \(gpt2, neo",
        ),
        (
            "gpt2-2x64-words",
            r"the model gpt2-2x64-words: unknown tokenizer 'words'; \(chars, ",
        ),
        ("gpt2-0x48-chars", "1 to 16 layers, not 0; it must be 32 to 512 wide, a mul.* 32, not 48"),
        ("rwkv-20x1024-chars", "unknown architecture 'rwkv'; .*; .*, not 20; .*, not 1024"),
    ],
)
def test_names_of_no_model(name: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Design.parse(name)
