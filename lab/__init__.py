"""The laboratory: what made the package. It is run from a clone and not installed with it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The clone."""
DATA = ROOT / "graphcircuits" / "data"
"""What the package ships, and some programs here write."""
