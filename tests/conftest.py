"""One Hypothesis profile for every test: no deadlines, and the same examples each time in CI."""

import os

from hypothesis import settings

settings.register_profile("graphcircuits", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("graphcircuits")
