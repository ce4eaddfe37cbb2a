"""Training the network that looks (`graphcircuits.predictor.looker`), and judging it."""
