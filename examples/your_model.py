# %% [markdown]
# # Your own model and task
#
# Any GPT-2, Llama, Mistral, Qwen, Gemma, OLMo or GPT-NeoX will do, as an object of `transformers`
# or TransformerLens, a GGUF file, a folder, or a name on the hub. To have something that every
# machine can run, this notebook first trains a GPT-2 of two layers on one piece of English grammar.
# Then it asks SmolLM2-135M the same question in the same words.
#
# You need `pip install 'graphcircuits[hf,gguf,plot]'`. [Models](../models.md) says what can be
# loaded, [tasks](../tasks.md) what prompts can be, and the [first notebook](five_minutes.ipynb)
# what circuits and pairs are.

# %%
# %matplotlib inline
import csv
import os
import random
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import graphcircuits as gc

# %% [markdown]
# ## A task
#
# *The dogs near the teacher ...* goes on with *are*, not with *is*: the verb agrees with the first
# noun, whatever stands in between. The corrupted prompt has that noun in the other number and is
# the same otherwise, so that what differs between the two runs is the number of the subject and
# nothing else.

# %%
NOUNS = ["dog", "cat", "boy", "girl", "teacher", "student", "doctor", "driver", "king", "singer"]
PLACES = ["near", "behind", "beside"]
VERBS = [("is", "are"), ("was", "were"), ("has", "have")]


def prompt(draw):
    """A subject, singular or plural, and one thing or two that the verb must not agree with."""
    plural, verb = draw.randrange(2), draw.choice(VERBS)
    noun, *others = draw.sample(NOUNS, 2 + draw.randrange(2))
    rest = "".join(f" {draw.choice(PLACES)} the {x}{draw.choice(['', 's'])}" for x in others)
    subjects = [f"The {noun}{rest}", f"The {noun}s{rest}"]
    return {
        "clean": subjects[plural],
        "corrupted": subjects[1 - plural],
        "correct": f" {verb[plural]}",
        "incorrect": f" {verb[1 - plural]}",
    }


def prompts(n, seed):
    draw = random.Random(seed)
    return [prompt(draw) for _ in range(n)]


for row in prompts(4, seed=0):
    print(f"{row['clean']:45}|{row['correct']:6} not{row['incorrect']}")

# %% [markdown]
# ## A model
#
# A tokenizer that knows these words and no others, and a GPT-2 with 2 layers of 4 heads.

# %%
words = ["<pad>", "The", "the", *NOUNS, *(f"{noun}s" for noun in NOUNS), *PLACES, *sum(VERBS, ())]
vocabulary = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, "<pad>"))
vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>")

torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=len(words),
    n_positions=16,
    n_embd=32,
    n_layer=2,
    n_head=4,
    bos_token_id=0,
    eos_token_id=0,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
)
model = transformers.GPT2LMHeadModel(config)
print(f"{model.num_parameters():,} parameters, {len(words)} words")

# %% [markdown]
# It is trained to say the verb: a few seconds on one core. (The usual loss on every word would
# spend most of its time on nouns that nobody can foresee.)

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
draw = random.Random(1)
for _ in range(200):
    rows = [prompt(draw) for _ in range(64)]
    batch = tokenizer([row["clean"] for row in rows], padding=True, return_tensors="pt")
    verbs = tokenizer([row["correct"] for row in rows], return_tensors="pt").input_ids[:, 0]
    last = batch.attention_mask.sum(1) - 1
    logits = model(batch.input_ids).logits[torch.arange(64), last]
    loss = torch.nn.functional.cross_entropy(logits, verbs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.2f}; no model can be better than log 3 = 1.10, as the verb is drawn")

# %% [markdown]
# ## Load it
#
# A loaded model is a *subject*: plain tensors, no hooks. Its logits are those of the original.

# %%
model.eval()
subject = gc.load_model(model)

ids = tokenizer("The dogs near the teacher", return_tensors="pt").input_ids
with torch.no_grad():
    apart = (subject.logits(ids) - model(ids).logits).abs().max().item()
print(subject.config.n_layers, "layers,", subject.graph.n_edges, "edges")
print("the same logits as in transformers, up to rounding:", apart < 1e-4)

# %% [markdown]
# ## Pairs from your prompts
#
# `Pairs.from_text` takes lists of prompts and answers, and a CSV file with those columns does as
# well. An answer is one token, with the space in front that it has behind the prompt. Always ask
# first whether the model does the task: the circuit of a task that it cannot do explains nothing.


# %%
def pairs_of(tokenizer, n, seed):
    rows = prompts(n, seed)
    return gc.Pairs.from_text(tokenizer, **{name: [row[name] for row in rows] for name in rows[0]})


def share_right(subject, pairs):
    """How often the right answer has the larger logit: the loss is wrong minus right."""
    with torch.no_grad():
        return (pairs.loss(subject.logits(pairs.clean)) < 0).float().mean().item()


pairs, fresh = pairs_of(tokenizer, 64, seed=2), pairs_of(tokenizer, 64, seed=3)
print(f"right on {share_right(subject, fresh):.0%} of fresh prompts")
pairs

# %% [markdown]
# The same pairs from a file:

# %%
with Path("agreement.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, ["clean", "corrupted", "correct", "incorrect"])
    writer.writeheader()
    writer.writerows(prompts(64, seed=2))

from_file = gc.Pairs.load("agreement.csv", tokenizer=tokenizer)
print("\n".join(Path("agreement.csv").read_text().splitlines()[:3]))
print("the same pairs:", torch.equal(from_file.clean, pairs.clean))

# %% [markdown]
# ## Localize
#
# This model was trained on its task alone, by other people's code. Is that like the models that the
# predictor `gcl` knows? The notes say what was chosen, and why.

# %%
result = gc.localize(subject, pairs)

print("method:", result.method)
for note in result.notes:
    print("-", note)
for edge, score in result.top(8):
    print(f"{edge:16} {score:.3f}")

# %% [markdown]
# ## How much of the behaviour is that?
#
# On fresh pairs, with every edge outside corrupted: how near the output comes to the model's own.

# %%
curve = gc.faithfulness_curve(subject, fresh, result)

for size, value in zip(curve.sizes, curve.faithfulness, strict=True):
    print(f"{size:3} edges keep {value:5.2f}")
curve.plot()

# %% [markdown]
# Is that good? Ask another method. `log_area` is what is missing to 1, on average over sizes in
# equal ratios, smaller is better; who is ahead on average need not be ahead on your model.

# %%
candidates = [result, gc.localize(subject, pairs, "eap-ig")]
areas = [gc.faithfulness_curve(subject, fresh, one).log_area for one in candidates]
best = candidates[areas.index(min(areas))]

for one, area in zip(candidates, areas, strict=True):
    print(f"{one.method:8} log area {area:.3f}")

# %% [markdown]
# The circuit to look at is that of the better one. `prune` leaves out edges that are on no path
# from input to logits.

# %%
circuit = best.circuit(edges=12, prune=True)
print(f"{len(circuit)} edges keep {gc.faithfulness(subject, fresh, [circuit])[0]:.2f}")
best.plot(circuit=circuit)

# %% [markdown]
# ## What its heads look at
#
# The number of the subject has to come from position 1 (*dogs*) to the last one. Which heads look
# back there?

# %%
clean = tokenizer("The dogs near the teacher", return_tensors="pt").input_ids
with torch.no_grad():
    for layer, pattern in enumerate(subject.patterns(clean)):
        for head, weight in enumerate(pattern[0, :, -1, 1].tolist()):
            used = "in the circuit" if f"a{layer}.h{head}" in circuit.components else ""
            print(f"a{layer}.h{head} looks from 'teacher' at 'dogs' with {weight:.2f}  {used}")

# %% [markdown]
# A head of the circuit that looks there and nowhere else carries the number of the subject to the
# verb. Attention alone would not tell: heads outside the circuit look there too, a little.
#
# All of it, with attention on a few prompts, as a page to click through:

# %%
best.show("agreement.html", circuit=circuit)
print("open agreement.html in a browser")

# %% [markdown]
# ## The same with SmolLM2
#
# Nothing above depends on the model being small. In a clone of the repository `make fetch-models`
# gets SmolLM2-135M-Instruct (a GGUF file of 4 bits, 100 MB) into `build/models`; the variable
# `GRAPHCIRCUITS_MODELS` names another folder, and `gc.load_model("HuggingFaceTB/SmolLM2-135M")`
# takes it from the hub. Where the file is not there, the cells below do nothing. What you see under
# them was recorded where it was; it takes a minute or two on a CPU.

# %% tags=["smollm2"]
named = os.environ.get("GRAPHCIRCUITS_MODELS")
folders = [named] if named else ["build/models", "../build/models", "../../build/models"]
found = [path for path in (Path(folder) / "smollm2.gguf" for folder in folders) if path.is_file()]
if found:
    large = gc.load_model(found[0])
    print(
        f"this is SmolLM2: {large.config.n_layers} layers of {large.config.n_heads} heads, "
        f"{large.graph.n_edges:,} edges, from {found[0].name}"
    )
else:
    print("SmolLM2 is not here: the cells below do nothing; make fetch-models gets it")

# %% tags=["smollm2"]
if found:
    pairs, fresh = (pairs_of(large.tokenizer, 8, seed) for seed in (2, 3))
    print(f"right on {share_right(large, fresh):.0%} of fresh prompts")
    result = gc.localize(large, pairs)
    print("method:", result.method)
    for note in result.notes:
        print("-", note)
    for edge, score in result.top(8):
        print(f"{edge:20} {score:.3f}")

# %% tags=["smollm2"]
if found:
    curve = gc.faithfulness_curve(large, fresh, result)
    for size, value in zip(curve.sizes, curve.faithfulness, strict=True):
        print(f"{size:6,} edges keep {value:5.2f}")

# %% [markdown]
# It takes thousands of its 70,651 edges, in this ranking, to give the model's own output back: far
# from two heads and an MLP. A model that was trained on text does not keep a task in one place, and
# scores from eight pairs rank edges that matter behind many that do not; `gc.refine` improves them.
# Tasks that many papers studied (IOI, greater-than, ...) come with the package:
# `gc.tasks.ioi(tokenizer, n=64)`, and `gc.tasks.names()` lists them.
