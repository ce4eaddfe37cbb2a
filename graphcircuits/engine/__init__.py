"""Runs of a subject in which edges carry something else, and the memory that runs take.

Every method that looks for circuits is a short program over these runs, so that what an edge is,
and what cutting it means, is decided in one place.
"""
