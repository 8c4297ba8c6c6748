"""A single chat: one message to an agent and one reply, without a session."""

from contextlib import aclosing
from typing import TYPE_CHECKING

from spass.agents.answers import Reply
from spass.agents.reply import render_reply
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.events import collect
from spass.core.time import now

if TYPE_CHECKING:
    from spass.agents.engine import Engine  # imported when a function has started, not while its module is imported


async def chat(engine: "Engine", scope: Scope, agent: AgentSpec, message: str) -> Reply:
    """Return the reply. A cancelled chat makes no further model call.

    Raises:
        ModelNotAllowed: the token may not use the agent's model; no model was called.
        SpassError: the turn failed.
    """
    engine.check(scope, agent)
    async with aclosing(engine.run(scope, agent, message)) as events:
        outcome = collect([event async for event in events])
    return render_reply(scope.caller.request_id, agent, outcome, now())
