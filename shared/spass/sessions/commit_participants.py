"""Let several participants join the commit of one turn."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from spass.core.errors import InternalError
from spass.core.events import Event, TurnFinished
from spass.core.outcome import TurnOutcome
from spass.sessions.turn_request import NOTHING_JOINED, CommitParticipant, CommitWith, LoadHistory, Respond, ShortenHistory
from spass.store.writes import Write


def join_commit(respond: Respond, participant: CommitParticipant) -> Respond:
    """Return ``respond`` with the writes of ``participant`` in its commit, after those that it yields itself."""

    async def joined(load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event | CommitWith, Any]:
        async with aclosing(respond(load, shorten)) as events:
            async for event in events:
                if not isinstance(event, TurnFinished):
                    yield event
                    continue
                outcome = yield event
                if outcome is not None:
                    own = await read_commit(events, outcome)
                    yield merge([own, await participant(outcome)])
                return

    return joined


def merge(commits: Sequence[CommitWith]) -> CommitWith:
    """Return the writes of all ``commits``. Another try has newer writes of those that can renew theirs, and the same of the
    others."""
    if len(commits) == 1:
        return commits[0]

    async def renew() -> Sequence[Write] | None:
        newer: list[Write] = []
        for commit in commits:
            writes = await commit.renew() if commit.renew is not None else commit.writes
            if writes is None:
                return None
            newer += writes
        return newer

    can_renew = any(commit.renew is not None for commit in commits)
    return CommitWith([write for commit in commits for write in commit.writes], renew if can_renew else None)


async def read_commit(events: AsyncGenerator[Event | CommitWith, Any], outcome: TurnOutcome) -> CommitWith:
    """Send the outcome of the turn to its ``events``, which have yielded the last one. Return what they yield for its commit."""
    try:
        last = await events.asend(outcome)
    except StopAsyncIteration:
        return NOTHING_JOINED
    if not isinstance(last, CommitWith):
        raise InternalError("The turn had events after its last one.")
    return last
