"""The predictor: a graph network that says which edges of a subject form the circuit of a task.

`align` and `invariant` bring the features of every edge to one width, `transform` says which edges
follow each other, `dirgnn` and `dagformer` pass messages along that, `pool` makes one vector
per edge of those at its contexts.
"""
