"""The blocks of the paper's system: graph transformations, aligner, graph learners, pooling."""
