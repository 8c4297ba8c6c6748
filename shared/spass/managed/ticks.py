"""The ticks of schedules: each starts one run of its agent, or is stored as a skipped one."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from spass.aws.clients import TenantStore
from spass.core.errors import AgentNotFound, AgentPaused, NothingToRun, RunNotFound, SessionBusy
from spass.core.ids import RunId, derived_id
from spass.core.jobs import Tick
from spass.core.time import Clock, timestamp
from spass.managed.lookup import find_agent
from spass.managed.records import ManagedAgent, Run, RunTrigger
from spass.managed.run_start import new_run, skip, start
from spass.managed.runs import begun, load_run
from spass.managed.schedules import ScheduleWriter, schedule_hash, ticking_schedule

_MINUTE: Final = 60  # seconds; the scheduler's precision


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """The active run of ``agent``. ``is_begun``: this claim has begun it, else an earlier delivery has."""

    agent: ManagedAgent
    run: Run
    is_begun: bool


class Ticks:
    """Turns ticks into runs. ``schedules`` returns the writer of entries. ``clock`` returns seconds since the epoch."""

    def __init__(self, schedules: Callable[[], ScheduleWriter], clock: Clock) -> None:
        self._schedules = schedules
        self._clock = clock

    async def claim(self, store: TenantStore, tick: Tick, sent: float) -> ClaimedRun | None:
        """Start and begin the run of ``tick``, and return it. Return None if there is nothing to execute: the run was skipped or
        is over. A tick that is delivered again gives the same run.

        ``sent`` is when the message was sent, in seconds since the epoch. It counts if the tick has no time.

        Raises:
            StorageUnavailable: the table or the scheduler does not answer; deliver the tick again.
        """
        minute = _minute(tick.at, sent)
        run_id = RunId(derived_id("run", minute * _MINUTE * 1000, f"{tick.agent}#{minute}"))
        agent = await find_agent(store, tick.agent)
        if agent is not None and agent.active_run == run_id:
            with suppress(RunNotFound):
                return ClaimedRun(agent, await load_run(store, agent.id, run_id), is_begun=False)
            return None  # the run has ended since, and the agent was deleted
        schedule = ticking_schedule(agent)
        if agent is None or schedule is None:
            await self._schedules().remove(store, tick.agent)
            return None
        if schedule_hash(schedule) != tick.schedule:
            return None  # an earlier schedule's; the entry is being replaced, or the sweep replaces it
        # It acts as the token that last wrote what a run uses, and as deep as that request.
        new = new_run(
            agent,
            RunTrigger.SCHEDULE,
            agent.token_id,
            self._clock(),
            depth=agent.depth,
            run=run_id,
            own_input=schedule.input,
        )
        with suppress(AgentNotFound):
            return await self._start(store, agent, replace(new, scheduled_for=timestamp(minute * _MINUTE)))
        return None

    async def _start(self, store: TenantStore, agent: ManagedAgent, run: Run) -> ClaimedRun | None:
        """Start and begin the run, or store it as skipped if the agent is paused or busy, or has nothing to do."""
        now = self._clock()
        if agent.paused or not (run.input or agent.pending):
            await skip(store, run, now)
            return None
        new = begun(run, now)
        try:
            stored = await start(store, agent, new, None, now)
        except (SessionBusy, AgentPaused, NothingToRun):
            await skip(store, run, now)
            return None
        if stored.status.is_final:
            return None
        return ClaimedRun(replace(agent, active_run=run.id), stored, is_begun=stored.begun_by == new.begun_by)


def _minute(at: str, sent: float) -> int:
    """Return the minute of a tick since the epoch. The emulator does not fill in the scheduled time, so there ``sent`` counts."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return int(sent) // _MINUTE
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) // _MINUTE
