# %% [markdown]
# # Write a method and bench it
#
# A method is a function: a subject and pairs in, one score per edge out. This notebook writes edge
# attribution patching in a few lines, changes one thing about it, and finds out whether that helps,
# on subjects whose circuits are known.
#
# You need `pip install 'graphcircuits[plot]'`. What circuits and pairs are, the
# [first notebook](five_minutes.ipynb) says; [methods](../methods.md) lists those that are there.

# %%
# %matplotlib inline
import torch

import graphcircuits as gc

case = gc.load_case("ib-21")
subject, pairs = case.subject(), case.pairs(64)

# %% [markdown]
# ## What a run knows
#
# `subject.run` gives what every component wrote and, with a loss, the gradient at what every
# component read. Writers and readers come in the order of the graph, and `edge_writers`,
# `edge_readers` say which of them an edge joins.

# %%
run = subject.run(pairs.clean, loss=lambda logits: pairs.loss(logits).sum())
graph = subject.graph

print("writers: ", run.writers.shape, "batch, position, writer, d_model")
print("gradients at readers: ", run.reader_gradients.shape)
print(
    "edge 7: ",
    graph.writer_names[graph.edge_writers[7]],
    "->",
    graph.reader_names[graph.edge_readers[7]],
)

# %% [markdown]
# ## EAP in five lines
#
# If an edge carried its corrupted value, the loss would change by about (change of what the writer
# wrote) · (gradient at the reader). Its size, averaged over prompts, is the score (Syed et al.
# 2023).


# %%
def effects(change, gradient, graph):
    """First-order effect of every edge on every prompt, summed over positions."""
    by_ends = torch.einsum("bpwd, bprd -> bwr", change, gradient)
    return by_ends[:, graph.edge_writers, graph.edge_readers]


def my_eap(subject, pairs):
    clean = subject.run(pairs.clean, loss=lambda logits: pairs.loss(logits).sum())
    change = subject.run(pairs.corrupted).writers - clean.writers
    return effects(change, clean.reader_gradients, subject.graph).abs().mean(0)


mine = gc.localize(subject, pairs, my_eap)
packaged = gc.localize(subject, pairs, "eap")
print("the same as the package's own:", torch.allclose(mine.scores, packaged.scores, atol=1e-6))
print("method:", mine.method, " best edge:", mine.top(1)[0][0])

# %% [markdown]
# ## A variation
#
# Where a model is sure of its answer the loss is flat, and gradients at the clean run are small
# whatever the edge does. At the corrupted run it is not sure at all. So: take the gradient at both
# ends, and let an edge count for the larger of its two effects. One more backward pass, no path in
# between. `weight` is an option: keyword-only parameters with defaults are.


# %%
def either_end(subject, pairs, *, weight=1.0):
    """The larger of the effects of noising and of denoising an edge, the latter times a weight."""

    def loss(logits):
        return pairs.loss(logits).sum()

    clean, corrupted = subject.run(pairs.clean, loss), subject.run(pairs.corrupted, loss)
    change = corrupted.writers - clean.writers
    noising, denoising = (
        effects(change, run.reader_gradients, subject.graph).abs().mean(0)
        for run in (clean, corrupted)
    )
    return torch.maximum(noising, weight * denoising)


result = gc.localize(subject, pairs, either_end)
for name, one in (("eap", packaged), ("either_end", result)):
    curve = gc.faithfulness_curve(subject, case.pairs(64, seed=1), one)
    needed = f"{curve.edges_for(0.9)} edges keep 0.9"
    print(f"{name:10} AUROC {gc.auroc(one, case.circuit):.3f}  {needed}")
result.top(5)

# %% [markdown]
# ## On one case it helps. On others?
#
# `gc.bench` runs methods, by name or as functions, on cases; each seed draws other prompts.
# Circuits are judged by AUROC against the truth, and by faithfulness on prompts that the methods
# have not seen. Here are six of the held-out cases; `cases="test"` takes all of them.

# %%
cases = ["ib-3", "ib-4", "ib-13", "ib-18", "ib-19", "ib-21"]
report = gc.bench(["gcl", "eap-ig", "eap", either_end, "random"], cases, n_pairs=32)

print("method       AUROC: min  median   edges for 0.9   best on")
for row in report.rows():
    low, _, median, _, _ = row.summary.quantiles
    figures = f"{low:.3f}   {median:.3f}  {row.needed:14.1f}"
    print(f"{row.method:12}     {figures}  {row.wins:4.1f} cases")

# %%
report.plot()

# %% [markdown]
# A box is the quartiles over cases, the line in it the median. Case by case, since a median hides
# where a method fails:

# %%
print("case    " + "".join(f"{method:>12}" for method in report.config.methods))
for id in cases:
    by_method = {run.method: record["auroc"] for run, record in report.scores if run.case == id}
    print(f"{id:8}" + "".join(f"{value:12.3f}" for value in by_method.values()))

# %% [markdown]
# ## Options, seeds, names
#
# A mapping names methods, and `options` sets theirs. With several `seeds` every figure has a
# spread. Does the weight matter?

# %%
weights = {f"weight {w}": either_end for w in (0.01, 0.1, 1.0)}
options = {name: {"weight": float(name.split()[1])} for name in weights}
tuned = gc.bench(weights, ["ib-3", "ib-4", "ib-18"], n_pairs=16, seeds=2, options=options)

for row in tuned.rows():
    print(
        f"{row.method:12} median AUROC {row.summary.quantiles[2]:.3f} ± {row.summary.spread[2]:.3f}"
    )

# %% [markdown]
# Hardly, on these three: one knob less to defend.
#
# `report.markdown()` is the table with time and memory, `report.write("folder")` has it as
# Markdown and CSV, and `out="folder"` keeps runs of the package's methods, so that a second
# bench only runs yours.
#
# Two things to hold on to before you believe a number: choose on cases of the pool (`cases="pool"`)
# and judge on `"test"`; and planted circuits are clean, so look at `fleet="natural"` too, models
# that were trained on the task alone, where faithfulness is all there is.
