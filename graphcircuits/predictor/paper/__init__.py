"""The building blocks of the paper's system."""
