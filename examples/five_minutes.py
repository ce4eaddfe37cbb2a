# %% [markdown]
# # Find a circuit in five minutes
#
# A *circuit* is the part of a transformer that does one task: a few edges between attention heads
# and MLPs, out of hundreds or millions. Here you find one in a small transformer whose true circuit
# is known, so that you can see how far to trust what comes out.
#
# All you need is `pip install 'graphcircuits[plot]'`. No GPU, no download: the subject comes with
# the package.

# %%
# %matplotlib inline
import graphcircuits as gc

# %% [markdown]
# ## A subject and its task
#
# A *case* is a task that is written as a program; the *subject* is a transformer that was trained
# to compute it. This one keeps the balance of brackets: which share of the tokens so far is `(`,
# minus which share is `)`. Its circuit is known because the training put it there ([another
# notebook](plant_a_circuit.ipynb) does that from scratch).

# %%
case = gc.load_case("ib-4")
subject = case.subject()

tokens = ["(", "a", ")", ")"]
print("program:", [round(x, 2) for x in case.program(tokens)])
print("subject:", [round(x, 2) for x in subject.apply(tokens)])
print(
    f"{subject.config.n_layers} layers, {subject.config.n_heads} heads in each, "
    f"{subject.graph.n_edges} edges"
)
case

# %% [markdown]
# Circuits are found from *pairs*: a clean prompt, a corrupted one in which the answer is another,
# and what is right on the clean one. A case draws as many as you like. `fresh` is kept aside, to
# judge the circuit on prompts that nothing has seen.

# %%
pairs, fresh = case.pairs(64, seed=0), case.pairs(64, seed=1)
pairs

# %% [markdown]
# ## Localize
#
# One call gives every edge a score, larger meaning more likely in the circuit. Without a method's
# name the package chooses one, and says why in the notes.

# %%
result = gc.localize(subject, pairs)

for note in result.notes:
    print("-", note)

# %% [markdown]
# `gcl` is a graph neural network that was trained over many small transformers with known circuits.
# It has never seen this one, nor one like it; the notes also say whether the case looks like those
# of its training. Where it does not, the package takes `eap-ig` instead of guessing.
#
# An edge runs from a component that writes to one that reads: `a1.h0` is head 0 of layer 1, and
# `<q>`, `<k>`, `<v>` are its query, key and value.

# %%
for (edge, score), likely in zip(result.top(12), result.top_probabilities(12), strict=True):
    known = "in the true circuit" if edge in case.circuit else ""
    print(f"{edge:18} {score:6.2f}  probability {likely:.2f}  {known}")

# %% [markdown]
# ## Against the truth
#
# Take as many edges as the true circuit has. The picture draws hits, misses and false alarms; AUROC
# is the chance that an edge of the circuit scores above one outside it. Benchmarks count a head's
# query, key and value as one; with `level="qkv"` they are told apart, as in the picture.

# %%
found = result.circuit(edges=len(case.circuit))

print("found and true:  ", len(found & case.circuit))
print("missed:          ", sorted((case.circuit - found).edges))
print("false alarms:    ", sorted((found - case.circuit).edges))
print("AUROC by head:   ", round(gc.auroc(result, case.circuit), 3))
print("AUROC by q, k, v:", round(gc.auroc(result, case.circuit, level="qkv"), 3))

# %%
result.plot(circuit=found, truth=case.circuit)

# %% [markdown]
# ## Without the truth
#
# For a model of your own nobody knows the circuit. What can always be asked: if only these edges
# carry the clean prompt, and all others the corrupted one, how near does the output come to the
# model's own? 1 is the same, 0 no nearer than with every edge corrupted. The curve asks it for the
# best edges at growing numbers of them, and `edges_for(0.9)` is how many it takes to keep 0.9.

# %%
curve = gc.faithfulness_curve(subject, fresh, result)

for size, value in zip(curve.sizes, curve.faithfulness, strict=True):
    if size <= 26:
        print(f"{size:3} edges keep {value:5.2f}")
print(f"{curve.edges_for(0.9)} edges are enough for 0.9")

# %%
curve.plot()

# %% [markdown]
# ## Another method beside it
#
# Every method has the same signature, so the same lines compare them. `log_area` is what is missing
# to 1, on average over sizes in equal ratios: smaller is better. `acdc` removes edges one after the
# other, `nap` scores components and gives their scores to all their edges, `random` is the floor.

# %%
results = {
    name: gc.localize(subject, pairs, name) for name in ("gcl", "eap-ig", "acdc", "nap", "random")
}

print("method   AUROC  edges for 0.9  log area")
for name, one in results.items():
    curve = gc.faithfulness_curve(subject, fresh, one)
    needed, area = curve.edges_for(0.9), curve.log_area
    print(f"{name:8} {gc.auroc(one, case.circuit):5.3f}  {needed:13}  {area:8.3f}")

# %% [markdown]
# One case is an anecdote, and this one was chosen because it is easy to look at. [Results of all
# methods on all held-out cases](../results.md) are less kind, and [the last
# notebook](your_method.ipynb) makes such a comparison.
#
# ## Look at it
#
# `show` writes one page that opens from disk, without a server or a network: a slider for the
# number of edges with the curve from above beside it, the paths through a component that you click,
# its attention on some prompts, and the truth beside the prediction.

# %%
result.show(
    "circuit.html",
    truth=case.circuit,
    others=[results["acdc"]],
    notes=case.variables,
    curve=curve,
)
print("open circuit.html in a browser")

# %% [markdown]
# ## Next
#
# - [Your own model and task](your_model.ipynb)
# - [Write a program, plant its circuit, find it again](plant_a_circuit.ipynb)
# - [Write a method and bench it](your_method.ipynb)
