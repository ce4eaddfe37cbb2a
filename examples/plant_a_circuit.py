# %% [markdown]
# # Write a program, plant its circuit, find it again
#
# How do you know that a method finds circuits, if nobody knows what the circuit is? Plant one. Here
# you write a small program, compile it to transformer weights, train an ordinary transformer to
# compute it *in those components and along those edges*, and then ask methods to find them again.
#
# You need `pip install 'graphcircuits[plot]'`.

# %%
# %matplotlib inline
import graphcircuits as gc
from graphcircuits import rasp

# %% [markdown]
# ## A program
#
# In RASP (Weiss et al. 2021) every step is something that attention or an MLP can do. `Select`
# compares queries with keys, as a head does; `SelectorWidth` counts what it selected; `Map` is an
# MLP. This program detects duplicates: has this token been there before?

# %%
same = rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.EQ).named("same")
count = rasp.SelectorWidth(same).named("count")
duplicate = rasp.Map(lambda n: n > 1, count).named("duplicate")

case = gc.Case(
    id="duplicates",
    program=duplicate,
    vocab=("a", "b", "c", "d"),
    max_seq_len=6,  # five tokens, and the BOS token before them
    causal=True,
    task="Whether the token has been there before.",
)
case.evaluate(["a", "b", "a", "a", "d"])

# %% [markdown]
# ## Its true circuit
#
# The compiler sets weights by hand that compute exactly this, and so it knows which component does
# what. A head finds equal tokens, the first MLP turns how much it attended to into a count, the
# second compares the count with 1.

# %%
compiled = case.compiled
print(compiled.apply(["a", "b", "a", "a", "d"]))
for component, variable in case.variables.items():
    print(f"{component:5} computes {variable}")
for edge in case.circuit:
    print(edge)

# %% [markdown]
# ## Plant it
#
# Compiled weights are no test: they are mostly zeros, and the circuit is all there is. So a
# transformer with four heads in each of two layers is trained from random weights by strict
# interchange intervention training (SIIT, Gupta et al. 2024). Swap what `a0.h0` writes between two
# inputs, and the answer must change as the program's does when `count` is swapped; swap what
# another head writes, and nothing may change. Training stops as soon as all of that holds; a
# program this small can do with smaller batches and larger steps than the usual ones.

# %%
planted = case.train(seed=0, rows=64, lr=6e-3, check_every=50)
subject = planted.subject

print("passed:", planted.passed, "after", planted.report["steps"], "steps")
print("answers right:                               ", f"{planted.report['accuracy']:.1%}")
print("right when a circuit component is swapped:   ", f"{planted.report['worst_interchange']:.1%}")
print("unmoved when any other component is swapped: ", f"{planted.report['worst_strict']:.1%}")
print("right when all other edges are cut:          ", f"{planted.report['circuit_accuracy']:.1%}")

# %% [markdown]
# Those figures are of inputs that the training has not seen, and of the worst component of each
# kind. The subject answers like the program:

# %%
print(subject.apply(["d", "d", "b", "a", "b"]))
print(case.evaluate(["d", "d", "b", "a", "b"]))

# %% [markdown]
# Is the true circuit enough on its own, and is all of it needed?

# %%
pairs, fresh = case.pairs(64, seed=1), case.pairs(64, seed=2)
without = {
    edge: case.circuit - gc.Circuit.from_names(subject.graph, [edge]) for edge in case.circuit
}
kept = gc.faithfulness(subject, fresh, [case.circuit, *without.values()])

print(f"the true circuit alone keeps {kept[0]:.2f}")
for edge, value in zip(without, kept[1:], strict=True):
    print(f"without {edge:16} {value:6.2f}")

# %% [markdown]
# ## Find it again
#
# The methods see the subject and the pairs, nothing else.

# %%
results = {
    name: gc.localize(subject, pairs, name) for name in ("gcl", "eap-ig", "acdc", "nap", "random")
}

print(f"method   AUROC  of the {len(case.circuit)} best edges in the circuit")
for name, result in results.items():
    best = result.circuit(edges=len(case.circuit))
    print(f"{name:8} {gc.auroc(result, case.circuit):5.3f}  {len(best & case.circuit)}")

# %%
results["gcl"].plot(edges=8, truth=case.circuit)

# %% [markdown]
# What the predictor says besides: is this program like those that it was trained on?

# %%
for note in results["gcl"].notes:
    print("-", note)

# %% [markdown]
# ## A natural twin
#
# The same architecture trained on the answers alone may do it any way it likes. How many of the
# best edges does it take to keep nine tenths of the behaviour, in either?

# %%
natural = case.train("natural", seed=0, rows=64, check_every=50).subject


def edges_needed(subject, method="eap-ig"):
    scores = gc.localize(subject, pairs, method)
    return gc.faithfulness_curve(subject, fresh, scores).edges_for(0.9)


(planted_there,) = gc.faithfulness(natural, fresh, [case.circuit])
print("planted: ", edges_needed(subject), "of", subject.graph.n_edges, "edges")
print("natural: ", edges_needed(natural), "of", natural.graph.n_edges, "edges")
print(f"the planted circuit in the natural model keeps {abs(planted_there):.2f}")

# %% [markdown]
# Planted circuits are small and clean; a model that nobody told where to compute uses most of what
# it has. A method that finds every planted circuit has passed an exam, not proved that it reads
# minds.
#
# ## Next
#
# - `graphcircuits build --program FILE.py:NAME` does the same from a shell and keeps the subject in
#   a file; `graphcircuits cases` lists the programs that come with trained subjects.
# - [Write a method and bench it](your_method.ipynb) on many of them.
# - Not every program can be planted in a minute: deep ones take thousands of steps and a GPU.
