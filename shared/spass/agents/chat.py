"""Run an agent outside of a session: one message and one reply, which nothing stores."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spass.calls.scope import Scope
from spass.core.errors import InternalError
from spass.core.events import Event, Failed, Outcome, TurnFinished
from spass.core.outcome import AgentRun, TurnOutcome
from spass.core.time import now


async def run_without_session(
    scope: Scope, run: AgentRun, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event | TurnOutcome, None]:
    """Yield the events of ``run`` as they arrive, and the outcome in place of ``TurnFinished``.

    Raises:
        SpassError: the run was refused or failed.
    """
    collected, finished = Outcome(), False
    async with aclosing(events):
        async for event in events:
            collected.add(event)
            match event:
                case Failed(error):
                    raise error
                case TurnFinished():
                    finished = True
                case _:
                    yield event
    if not finished:
        raise InternalError("The turn ended without an answer.")
    yield TurnOutcome.of(run, collected, scope.tally.total, now())
