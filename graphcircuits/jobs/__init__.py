"""Independent jobs: worked on in this process, in several, or on a Ray cluster, and kept.

`runner` says what all runners have in common, `processes` and `on_ray` are two of them, `messages`
is how a worker tells what it finds. `store` keeps what is finished, and sees to it that several
drivers share it; `command` is the command line that files state.
"""
