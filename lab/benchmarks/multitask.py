"""How fast several programs are planted in one model, and what helps: width, rate, more heads.

Trains one model on the CPU, prints the shares of right answers of every task at each check, then
what the independent audit and the check that the rest of the model is alive find.

python benchmarks/multitask.py rnd-1727,rnd-729 [--own] [--steps 2000] [--rows 128] [--d-model 32]
python benchmarks/multitask.py mt-12
python benchmarks/multitask.py same,smaller,larger [--same-head]
"""

import argparse
import json
import time
from dataclasses import replace

import torch

from graphcircuits import rasp
from graphcircuits.cases import load_case, multitask
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MultiCase, load_multi
from graphcircuits.cases.prepare import exchanges_of
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.train import train_fleet
from graphcircuits.fleets.verify import Verdict, verify_fleet
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from lab.factory.alive import vitality
from lab.factory.audit import audit

COUNTED = {
    "same": rasp.Comparison.EQ,
    "smaller": rasp.Comparison.LT,
    "larger": rasp.Comparison.GT,
}


def counting(name: str) -> Case:
    """How many tokens compare so with this one."""
    program = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, COUNTED[name]))
    return Case(id=name, program=program, vocab=(0, 1, 2, 3), max_seq_len=6)


def config_of(model: MultiCase, options: argparse.Namespace) -> TransformerConfig:
    """The model's sizes, or those given."""
    dims, codec = model.subject_dims, model.codec
    d_model = options.d_model or dims.d_model
    return TransformerConfig(
        n_layers=dims.n_layers,
        n_heads=dims.n_heads,
        d_head=options.d_head or dims.d_head,
        d_model=d_model,
        d_mlp=4 * d_model if options.d_model else dims.d_mlp,
        n_ctx=model.max_seq_len,
        d_vocab=codec.d_vocab,
        d_vocab_out=codec.d_vocab_out,
        causal=model.causal,
    )


def shares(verdict: Verdict) -> str:
    worst = f"interchange {verdict.worst_interchange:.3f} strict {verdict.worst_strict:.3f}"
    return f"accuracy {verdict.accuracy:.3f} {worst} circuit {verdict.circuit:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", help="a model such as mt-12, or cases separated by commas")
    parser.add_argument("--own", action="store_true", help="heads of its own for each program")
    parser.add_argument(
        "--same-head", action="store_true", help="share even heads that compare tokens"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--d-model", type=int)
    parser.add_argument("--d-head", type=int)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.same_head:
        multitask.can_share = lambda one, other: True
    if options.cases.startswith("mt-"):
        model = load_multi(options.cases)
    else:
        names = options.cases.split(",")
        cases = tuple(counting(n) if n in COUNTED else load_case(n) for n in names)
        model = MultiCase(id="trial", cases=cases, shared=not options.own)
    config = config_of(model, options)
    start = Transformer.random(config, torch.Generator().manual_seed(options.seed), model.codec)
    train, check, unseen = (
        exchanges_of(model, n, n // 4, seed)
        for seed, n in enumerate((options.inputs, 1024, 1024), start=1)
    )
    settings = SiitConfig(
        steps=options.steps,
        rows=options.rows,
        cut_rows=options.rows // 4,
        lr=options.lr,
        check_every=options.every,
    )
    sizes = (config.n_layers, config.n_heads, config.d_head, config.d_model)
    print(model, "layers, heads, d_head, d_model:", sizes, f"{parameters(start):,} parameters")
    began = time.perf_counter()
    trained = train_fleet(
        [start],
        [train],
        [check],
        settings,
        torch.Generator().manual_seed(options.seed),
        progress=lambda step, *_: print(step, f"{time.perf_counter() - began:.0f} s", flush=True),
    )[0]
    subject = replace(trained.subject.to(torch.float16).to(torch.float32), case=model.id)
    verdicts = verify_fleet([subject], [unseen], torch.Generator().manual_seed(1))[0]
    print(
        "passed" if all(v.passes() for v in verdicts) else "failed", "after", trained.steps, "steps"
    )
    for task, verdict in zip(model.tasks, verdicts, strict=True):
        found = audit(task, subject, task.pairs(128, seed=12345))
        alone = f"audit: circuit alone {found.complete:.3f}"
        print(f"{task.task_token:12} {shares(verdict)}; {alone}; unneeded {found.unneeded}")
    print(json.dumps(vitality(model, subject).summary()))


def parameters(subject: Transformer) -> int:
    return sum(weight.numel() for weight in subject.weights.values())


if __name__ == "__main__":
    main()
