"""Answer with the run of an operator."""

from collections.abc import Callable

from starlette.responses import Response

from spass.agents.engine import NOTHING_GIVEN
from spass.agents.kinds.base import AgentContext
from spass.agents.spec import AgentSpec
from spass.core.outcome import TurnOutcome
from spass.memory.operator import Operator
from spass.tenancy.response_model import ResponseModel
from spass.web.exchange import Exchange
from spass.web.outcomes import answer_turn, stream_turn


async def answer_operator(
    exchange: Exchange,
    agent: AgentSpec,
    operator: Operator,
    message: str,
    render: Callable[[TurnOutcome], ResponseModel],
    *,
    stream: bool,
    given: AgentContext = NOTHING_GIVEN,
    shows_kind: bool = False,
) -> Response:
    """Run one turn of ``operator`` and return its outcome, which ``render`` makes the body, or the stream of its events. The
    other arguments are those of ``OperatorTurns.start`` and ``stream_turn``.

    Raises:
        SpassError: the turn was refused, or failed before the answer began.
    """
    scope = (exchange.scope.streaming if stream else exchange.scope).as_owner
    turns = exchange.services.operator_turns
    turn = await turns.start(scope, agent, operator, message, given=given, idempotency=exchange.idempotency)
    return await stream_turn(exchange, agent, turn, shows_kind=shows_kind) if stream else await answer_turn(turn, render)
