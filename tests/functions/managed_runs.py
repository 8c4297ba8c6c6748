"""Runs of a managed agent over the real engine, kinds and tools, and a model that answers by a script."""

import asyncio
from functools import cached_property
from pathlib import Path
from typing import Final

from spass.aws.job_targets import JobTargets
from spass.core.messages import TokenUsage
from spass.jobs.runs import runs_handler
from spass.managed.ticks import Ticks
from spass.runs.managed_runs import ManagedRuns
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan
from spass.testing.model import ScriptedModel
from tests.functions.gateway import write_operators_files
from tests.simulated.chats import ClockedServices, Process, ignore_crashes, virtual_now
from tests.simulated.managed_world import RUNS_QUEUE, ManagedWorld
from tests.simulated.scripted_turns import render_error

USAGE: Final = TokenUsage(10, 5)


class ManagedServices(ClockedServices):
    """Services in the loop's time."""

    @cached_property
    def managed_runs(self) -> ManagedRuns:
        return ManagedRuns(self.managed_agents.check, self.runs, virtual_now)

    @cached_property
    def ticks(self) -> Ticks:
        return Ticks(lambda: self.schedules, virtual_now)


class ManagedGateway(ManagedWorld):
    """A world whose workers have real services. ``model`` answers for all models."""

    def __init__(self, folder: Path) -> None:
        self._settings = write_operators_files(folder)
        self._first: ManagedServices | None = None
        self.model = ScriptedModel()
        asyncio.get_running_loop().set_exception_handler(ignore_crashes)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Empty the stores and the queue."""
        super().__init__(MemoryAws(JobTargets(queue="jobs", runs_queue=RUNS_QUEUE), virtual_now), virtual_now)
        self.replace_worker()

    def replace_worker(self) -> None:
        """Let a new worker without caches answer all further requests."""
        services = ManagedServices(self._settings, self.model, self.aws)
        self._first = self._first or services
        for name in ("config", "agents", "tokens"):
            services.__dict__[name] = getattr(self._first, name)
        self.services = services
        self.serve(services.managed_runs, runs_handler(services.run_worker, render_error))

    def plan(self) -> FaultPlan:
        return Process()
