"""The ticks of schedules: each starts one run of its agent, or is stored as a skipped one.

A tick whose tenant has no place among the runs starts a queued run, which waits in the tenant's line. A tick that was
due before the schedule last started a run is skipped: many late ticks are one run.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from spass.core.errors import AgentNotFound, AgentPaused, NothingToRun, RunNotFound, SessionBusy
from spass.core.ids import RunId, derived_id
from spass.core.jobs import Tick, WorkKind
from spass.core.time import Clock, epoch_s, timestamp
from spass.core.traceparent import CURRENT_TRACE
from spass.managed.records import ManagedAgent, Run, RunTrigger, find_agent
from spass.managed.run_start import new_run, skip, start
from spass.managed.runs import begun, load_run, settle_lost
from spass.managed.schedules import ScheduleWriter, schedule_hash, ticking_schedule
from spass.managed.sending import put_in_line, send_lost, take_place, work_name
from spass.store.tenant_store import TenantStore

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
        """Start and begin the run of ``tick``, and return it. Return None if there is nothing to execute: the run was skipped, is
        over, or waits for a place. A tick that is delivered again gives the same run. A run that is returned has a place.

        ``sent`` is when the message was sent, in seconds since the epoch. It counts if the tick has no time.

        Raises:
            StorageUnavailable: the table or the scheduler does not answer; deliver the tick again.
        """
        due, run_id = _due(tick.at, sent), self.run_of(tick, sent)
        agent = await find_agent(store, tick.agent)
        _join_trace(agent)
        if agent is not None and agent.active_run == run_id:
            with suppress(RunNotFound):
                return await self._continue(store, agent, await load_run(store, agent.id, run_id))
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
        is_late = agent.ticked_at is not None and due <= epoch_s(agent.ticked_at)
        with suppress(AgentNotFound):
            run = replace(new, scheduled_for=timestamp(int(due) // _MINUTE * _MINUTE))
            if is_late or agent.paused or not (run.input or agent.pending) or not await settle_lost(store, agent, self._clock()):
                await skip(store, run, self._clock())
                if agent.active_run is not None:
                    await send_lost(store, agent.id, agent.active_run, self._clock())
            else:
                return await self._start(store, agent, run)
        return None

    @staticmethod
    def run_of(tick: Tick, sent: float) -> RunId:
        """Return the id of the run of a tick, which is always the same."""
        minute = int(_due(tick.at, sent)) // _MINUTE
        return RunId(derived_id("run", minute * _MINUTE * 1000, f"{tick.agent}#{minute}"))

    async def _start(self, store: TenantStore, agent: ManagedAgent, run: Run) -> ClaimedRun | None:
        """Start and begin the run. Without a place, start it and let it wait. If the agent is paused or busy, or has nothing to
        do, store the run as skipped.

        Raises:
            AgentNotFound: the agent was deleted.
        """
        now, name = self._clock(), work_name(agent.id, run.id)
        has_place = await store.line.take(WorkKind.RUNS, name)
        new = begun(run, now) if has_place else run
        try:
            stored = await start(store, agent, new, None, now)
        except (AgentNotFound, SessionBusy, AgentPaused, NothingToRun):
            if has_place:
                await store.line.give_back(WorkKind.RUNS, name)
            await skip(store, run, now)
            return None
        if stored.status.is_final:
            if has_place:
                await store.line.give_back(WorkKind.RUNS, name)
            return None
        if not has_place:
            if not stored.attempts:
                await put_in_line(store, stored)
            return None
        return ClaimedRun(replace(agent, active_run=run.id), stored, is_begun=stored.begun_by == new.begun_by)

    async def _continue(self, store: TenantStore, agent: ManagedAgent, run: Run) -> ClaimedRun | None:
        """Return the active run of a tick that was delivered before, or put it into the line if it has no place yet."""
        if not run.status.is_final and not await take_place(store, run):
            return None
        return ClaimedRun(agent, run, is_begun=False)


def _join_trace(agent: ManagedAgent | None) -> None:
    """Let the run belong to the trace of the request that wrote its schedule, if the work is traced. The runs of a schedule with
    many ticks are only linked: their trace would grow for years, and be sampled either always or never."""
    trace = CURRENT_TRACE.get()
    if trace is not None and agent is not None and agent.schedule is not None:
        trace.join(agent.traceparent, is_linked=not agent.schedule.is_once)


def _due(at: str, sent: float) -> float:
    """Return when a tick was due, in seconds since the epoch. The emulator does not fill in the scheduled time, so there ``sent``
    counts."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return sent
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
