"""Scores found case by case: never worse where they were found, and by the id of their example."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.engine.stack import Stack
from graphcircuits.subject.files import save_transformer
from graphcircuits.training.data import load_targets
from lab.studies.targets import find_targets, main
from tests.predictor.cases import training
from tests.training.examples import PRIOR, make_judged

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.slow
def test_refined_scores_are_better_on_their_prompts_or_the_prior() -> None:
    examples = make_judged()
    config = training(PRIOR, faithfulness_weight=1.0, masks=4, rows=0)
    found = find_targets([*examples, replace(examples[0], circuit=None)], config, steps=20)
    assert set(found) == {example.case for example in examples}
    gains = []
    for example in examples:
        assert example.item is not None
        assert example.reading.prior is not None
        stack = Stack.of([example.item])
        pair = torch.stack([example.reading.prior, found[example.case]])
        before, after = (float(stack.cmd(scores[None])[0]) for scores in pair)
        assert after < before or torch.equal(*pair)
        gains.append(before - after)
    assert max(gains) > 0.01
    with pytest.raises(ValueError, match="refined from a prior and by running subjects; read both"):
        find_targets([replace(examples[0], item=None)], config)


@pytest.mark.slow
def test_the_command_keeps_them(tmp_path: Path) -> None:
    save_transformer(tmp_path / "ib-7.safetensors", load_case("ib-7").subject())
    config, out = tmp_path / "small.toml", tmp_path / "out" / "targets.safetensors"
    own = "judged = 4\npairs = 4\nmasks = 2\nfaithfulness_weight = 1.0\n[predictor]\n"
    config.write_text(f"{own}prior = true\n")
    given = ["--out", out, "--corpus", tmp_path, "--config", config, "--steps", "1"]
    main([str(word) for word in given])
    assert {id: len(x) for id, x in load_targets(out).items()} == {
        "ib-7": load_case("ib-7").graph.n_edges
    }
    with pytest.raises(SystemExit, match="give folders of subjects by --corpus or --language"):
        main(["--out", str(out)])
