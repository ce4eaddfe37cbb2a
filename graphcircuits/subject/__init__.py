"""The transformer that is explained: configuration, plain run, and where its components act."""
