"""Planted language models: transformers that learn text and, in given components, run programs.

`prompts` makes the exchanges of calls in text, `train` trains a model on both beside its twin that
sees text alone, `judge` says whether each program is where it was planted, and `make` does all
that for one model and writes it. docs/planted-language-models.md shows what comes of it.
"""
