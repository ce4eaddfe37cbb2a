"""Tests of graphcircuits.drawing."""
