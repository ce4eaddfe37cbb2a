"""Strict interchange intervention training: plant a program's circuit in a transformer."""
