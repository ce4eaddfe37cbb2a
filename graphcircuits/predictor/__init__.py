"""The predictor: a graph network that says which edges of a subject form the circuit of a task.

What ships as `gcl`, in the order in which a prediction uses it:

1. `measure/`: what is read of a subject. `contract` multiplies gradients with what writers put out,
   `scaling` makes the numbers of one subject comparable with those of another.
2. `invariant`: these numbers as one table for a case, and the projection of its rows to states.
3. `model`: the network, and every choice that shapes one (`PredictorConfig`). The graph learner is
   `paper/dirgnn`, on the line graph of `paper/transform`; `block` is what its layers are made of.
4. `paths`: an edge counts as much as the best path that it lies on.
5. `ensemble`: several networks averaged, and their file; `facts/` is what that file knows of the
   training: how far to trust a correction, what a logit means, which cases are familiar.

`paper/` has the blocks of *Can Graph Learning Learn Circuits?*, which `gcl-paper` and the paper's
experiment are made of: `transform` (line and incidence graph), `align` with `summary` (its aligner,
which reads the raw vectors of `measure/features`), `dirgnn`, `dagformer`, `pool`. A reader of `gcl`
needs of them only `transform` and `dirgnn`.
"""
