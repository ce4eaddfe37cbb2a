"""Who works on independent jobs: this process, several of them, or a Ray cluster (docs/runner.md).

Runners live in `graphcircuits.jobs`, below everything that has jobs to give; this is the place to
import them from.
"""

from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.on_ray import OnRay
from graphcircuits.jobs.processes import Processes
from graphcircuits.jobs.runner import InProcess, Lost, Resources, Runner, runner_of
from graphcircuits.jobs.store import Claim, JobStore, run_missing

__all__ = [
    "Claim",
    "InProcess",
    "JobStore",
    "Lost",
    "OnRay",
    "Processes",
    "Resources",
    "Runner",
    "driver_command",
    "run_missing",
    "runner_of",
]
