"""The single shot: one message to an agent, one reply, nothing kept."""

from spass.agents.engine import Engine
from spass.agents.reply import render_reply
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.events import collect
from spass.core.messages import Json
from spass.core.running import Running
from spass.core.time import now


async def chat(engine: Engine, scope: Scope, agent: AgentSpec, message: str) -> dict[str, Json]:
    """The reply's JSON. The turn runs in a task of its own and goes on when the caller has gone away.

    Raises:
        ModelNotAllowed: before anything is done, when the token may not use the agent's model.
        SpassError: the turn failed.
    """
    engine.check(scope, agent)
    running = Running(engine.run(scope, agent, (), message))
    outcome = collect(await running.result())
    return render_reply(scope.caller.request_id, agent, outcome, now())
