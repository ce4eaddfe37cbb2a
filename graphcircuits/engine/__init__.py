"""Runs of a subject in which edges carry something else, and the memory that runs take."""
