"""Training predictors: on cases with known circuits, and choosing among settings."""
