"""The single shot: one message to an agent, one reply, nothing kept."""

from contextlib import aclosing
from typing import TYPE_CHECKING

from spass.agents.answers import Reply
from spass.agents.reply import render_reply
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.events import collect
from spass.core.time import now

if TYPE_CHECKING:
    from spass.agents.engine import Engine  # its rooms are entered when a function has started, not while it is imported


async def chat(engine: "Engine", scope: Scope, agent: AgentSpec, message: str) -> Reply:
    """Return the reply. Cancelled, as when its Idempotency-Key was lost to another try, it calls no further model and no tool.

    Raises:
        ModelNotAllowed: before anything is done, when the token may not use the agent's model.
        SpassError: the turn failed.
    """
    engine.check(scope, agent)
    async with aclosing(engine.run(scope, agent, (), message)) as events:
        outcome = collect([event async for event in events])
    return render_reply(scope.caller.request_id, agent, outcome, now())
