"""Perform ``RunForeign``: run a foreign agent under the request's deadline, redact what it answers, and account for it."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Final

from spass.calls.model_calls import ModelCalls
from spass.calls.recorder import Recorder, reported_price
from spass.calls.scope import Scope
from spass.core.cost import NO_COST, Cost, CostSource
from spass.core.effects import ForeignResult, ForeignRun, ToolOutcome
from spass.core.errors import UpstreamError, UpstreamTimeout
from spass.core.json import dump
from spass.core.messages import NO_TOKENS, Json, Message, Role, TokenUsage, ToolCall, replayable_name
from spass.limits.shard import Reservation
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.models.attempt import RoutingRecord
from spass.redaction.stream import redact_secrets
from spass.redaction.text import redact_members
from spass.tools.base import TOOL_FAILED, arguments_for_display

if TYPE_CHECKING:
    from spass.sandbox.foreign.service import ForeignAgents

_MAX_TOKENS: Final = 10**12
_MAX_USD: Final = 10**6
_MAX_MODEL_CHARACTERS: Final = 128


@dataclass(frozen=True, slots=True)
class ForeignPerformer:
    """Run the foreign agents of one scope. ``model`` is the agent's.

    A run is one call in the audit, whose backend is the runner. Its tokens and its cost are those that the runner's SDK reports.
    """

    calls: ModelCalls
    scope: Scope
    model: str
    foreign_agents: "ForeignAgents"

    async def perform(self, spec: ForeignRun) -> ForeignResult:
        """Return the answer of the foreign agent.

        Raises:
            InvalidRequest: a value is not allowed here.
            KindUnavailable: something is missing.
            RateLimited, BudgetExceeded: the tenant has no capacity left.
            UpstreamTimeout: the spec's or the request's time is over.
            UpstreamError: the foreign agent failed.
        """
        self.foreign_agents.check(spec)
        async with self.calls.admit_foreign_agent(self.scope, spec.prompt) as reservation:
            return await self._perform(spec, reservation)

    async def _perform(self, spec: ForeignRun, reservation: Reservation | None) -> ForeignResult:
        model = self.model if spec.runner == "openhands" else spec.runner  # the other SDK selects its own
        recorder = Recorder(self.scope, CallKind.CHAT, model=model, reservation=reservation)
        status, usage, cost = audit.FAILED, NO_TOKENS, NO_COST
        try:
            async with asyncio.timeout(self.scope.deadline.remaining()):
                answer = await self.foreign_agents.run(spec, model=self.model, owner=self.scope.caller.code_owner)
            result = await asyncio.to_thread(self._read, answer)
            usage, cost = self._usage_and_cost(result.metadata)
            if cost.source is CostSource.UPSTREAM:  # a sum of floats is not exact
                result = replace(result, metadata={**result.metadata, "cost_usd": float(cost.usd)})
            if spec.runner == "claude_code":
                result = replace(result, model=_selected_model(result.metadata) or spec.runner)
            status = audit.OK
        except TimeoutError:
            status = UpstreamTimeout.code
            raise UpstreamTimeout("The agent did not end before the deadline of the request.") from None
        except BaseException as error:
            status = audit.status_of(error)
            raise
        finally:
            routing = RoutingRecord(backend=spec.runner, attempts=1, answered_usage=usage)
            await recorder.finish(status, routing=routing, cost=cost)
        return result

    def _read(self, answer: Mapping[str, Json]) -> ForeignResult:
        """Return the answer without the gateway's secrets. Raise UpstreamError if it is not one."""
        redacted = redact_members(answer, partial(redact_secrets, self.calls.redactor.secrets()))
        match redacted:
            case {"content": str(content), "tool_results": list(results), "metadata": dict(metadata)}:
                return ForeignResult(content, tuple(results), metadata)
        raise UpstreamError("The agent's runner answered without content, tool_results and metadata.")

    def _usage_and_cost(self, metadata: Mapping[str, Json]) -> tuple[TokenUsage, Cost]:
        """Return the tokens and the cost that the SDK reports. A number that cannot be is none."""
        match metadata:
            case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}} if (
                0 <= prompt < _MAX_TOKENS and 0 <= completion < _MAX_TOKENS
            ):
                usage = TokenUsage(prompt, completion)
            case _:
                usage = NO_TOKENS
        usd = metadata.get("cost_usd")
        if not isinstance(usd, int | float) or not 0 < usd < _MAX_USD:
            return usage, Cost(sub_calls=1)
        return usage, reported_price(Decimal(str(usd)), self.calls.usd_to_eur)


def _selected_model(metadata: Mapping[str, Json]) -> str | None:
    """Return the model that did most of the work, which the SDK reports first."""
    match metadata:
        case {"models": [str(model), *_]} if model.strip():
            return model[:_MAX_MODEL_CHARACTERS]
    return None


def foreign_outcomes(results: Iterable[Json]) -> Iterator[ToolOutcome]:
    """Yield the outcomes of the agent's own tool calls, which its runner reports at the end, without ids. Leave out what
    describes no call."""
    for result in results:
        match result:
            case {"tool_name": str(name), "arguments": str(arguments), "content": str(content), "success": bool(ok)} if name:
                call = ToolCall("", replayable_name(name), arguments)
                value: Json = {"output": content} if ok else {"error": {"code": TOOL_FAILED, "message": content}}
                message = Message(Role.TOOL, dump(value), tool_call_id="")
                yield ToolOutcome(call, arguments_for_display(arguments), value, message, 0, ok=ok)
