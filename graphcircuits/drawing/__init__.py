"""Still pictures: of circuits, of curves, and what notebooks show of the package's values."""
