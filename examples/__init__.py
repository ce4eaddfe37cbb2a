"""Scripts to read and run, and what makes notebooks of them."""
