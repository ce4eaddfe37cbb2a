"""How sure one can be of a circuit: what a sceptical reader asks, measured line by line."""
