"""The laboratory: what made the package. It is run from a clone and not installed with it."""
