"""Many subjects trained side by side to follow their programs.

Planting a program's circuit in a transformer takes thousands of small steps; subjects of one shape
take them together, as one stack of padded weights. Read in this order: `exchange` (the program's
answers), `fleet` (the stack), `forward` (runs of it), `batch` (rows of a step), `recipes`
(settings), `train`, `verify` (whether a subject follows its program).

Strict interchange intervention training: Gupta et al., InterpBench, 2024.
"""
