"""Independent jobs: in this process, in several, or on a Ray cluster (docs/runner.md).

`runner` says what all runners have in common, `processes` and `on_ray` are two of them; `command`
is the command line that files state.
"""
