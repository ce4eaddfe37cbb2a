"""How good scores and circuits are."""
