"""Perform ``RunCode``: run the cells of one turn, and perform what their code asks for."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from typing import Final, TypeAlias

from spass.agents.inference import Inference, read_reply
from spass.agents.interrupt import end_open_calls
from spass.calls.recorder import Recorder
from spass.calls.scope import CallReports, Scope
from spass.core.code_calls import CODE_TOOL, CallReply, CodeRequest, Interpreter, Query, Sandbox, ToolRequest
from spass.core.effects import CallError, Cell, CellResult, Infer, Queries, RunCode, ToolOutcome, user
from spass.core.errors import (
    ConfirmTokenInvalid,
    Internal,
    InvalidRequest,
    SpassError,
    StorageUnavailable,
    ToolNotFound,
    UpstreamTimeout,
)
from spass.core.events import CallEvent, Nested, ToolCallFinished
from spass.core.ids import new_id
from spass.core.json import replace_surrogates
from spass.core.messages import Json, ToolCall, replayable_name
from spass.core.tasks import run_concurrently
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.tools.base import TOOL_FAILED, CallResult
from spass.tools.concurrent_calls import run_calls
from spass.tools.results import fit_approvals, fit_cell, outcome_of, waiting_results

TOO_MANY_SUB_CALLS: Final = "too_many_sub_calls"
"""The code of the error of a query after the last one that a turn may make."""

CallToolsWithin: TypeAlias = Callable[[Scope, Sequence[ToolCall]], AsyncGenerator[CallEvent, None]]
"""Execute tool calls of the agent for the call of a scope, side by side."""

_UNREAD: Final = (
    "Code cannot confirm a change by itself. Print the preview and the confirm_token. If the preview shows what was asked for, "
    "make the same call in your next reply, with the token written in the code."
)
_CONCURRENCY: Final = 8
_SECRET_CHARS: Final = 4096
"""Characters of an output behind those that are kept, so that a secret at their end is recognised. Only tokens are that long."""
_FATAL: Final = (StorageUnavailable, Internal)
"""Errors that end the turn, because it could not be recorded either."""


@dataclass(slots=True)
class CodePerformer:
    """Run the cells of one turn of an agent, in the agent's ``scope``.

    ``infer`` and ``call_tools`` perform the model calls and the tool calls of the code. ``tools`` are the names of the agent's
    tools. ``sandbox`` returns the place where code runs. ``redact`` removes secrets from what code prints and answers: these are
    words of a model.
    """

    scope: Scope
    infer: Callable[[Scope], Inference]
    call_tools: CallToolsWithin
    tools: Sequence[str]
    sandbox: Callable[[], Sandbox]
    redact: Callable[[str], str]
    sub_calls: int = field(default=0, init=False)
    """The number of queries of the turn so far."""

    def open(self) -> Interpreter:
        """Return the interpreter of a turn. Raise SandboxUnavailable if no code can run here."""
        return self.sandbox().open(self.scope.caller.tenant, self.scope.caller.code_owner)

    async def perform(
        self, effect: RunCode, call: ToolCall, interpreter: Interpreter
    ) -> AsyncGenerator[CallEvent | CellResult, None]:
        """Run the cell as ``call``. Yield the events of the call and of the calls within it, and last the result.

        Closing the iterator cancels the cell and everything that it asked for, and waits until all has ended.

        Raises:
            SandboxUnavailable: the sandbox does not answer.
            UpstreamTimeout: the cell did not end before the deadline.
            StorageUnavailable, Internal: the turn cannot continue.
        """
        results: list[CellResult] = []

        async def run(call: ToolCall, reports: CallReports) -> ToolOutcome:
            recorder = Recorder(self.scope, CallKind.TOOL, tool=CODE_TOOL)
            scope = self.scope.for_call(recorder.request_id, reports)
            work = _CellWork(self, effect.cell, scope, self.infer(scope))
            status = audit.FAILED
            try:
                result = await self._run_cell(interpreter, effect.cell, work)
                status = audit.OK if result.error is None else TOOL_FAILED
            except BaseException as error:
                status = audit.status_of(error)
                raise
            finally:
                await recorder.finish(status)
            results.append(result)
            return _outcome(call, result, work.outcomes, recorder.duration_ms)

        async with aclosing(run_calls((call,), run, concurrency=1)) as events:
            async for event in events:
                yield event
        yield results[0]

    async def _run_cell(self, interpreter: Interpreter, cell: Cell, work: "_CellWork") -> CellResult:
        tools = self.tools if cell.tools else ()
        try:
            async with asyncio.timeout(self.scope.deadline.remaining()):
                whole = replace(cell, max_output_chars=cell.max_output_chars + _SECRET_CHARS)
                result = await interpreter.run(whole, tools, work.perform)
                return await asyncio.to_thread(self._without_secrets, result, cell.max_output_chars)
        except TimeoutError:
            raise UpstreamTimeout("The code did not end before the deadline of the request.") from None

    def _without_secrets(self, result: CellResult, max_output_chars: int) -> CellResult:
        """Return the result with the first characters of its output. A secret that their end would cut is recognised by the
        characters behind them."""
        error, final = (None if text is None else self.redact(text) for text in (result.error, result.final))
        more = len(result.output) - max_output_chars
        output = self.redact(result.output)
        if more > 0:
            output = commonprefix((output, self.redact(result.output[:max_output_chars])))  # noqa: RUF071 (no paths)
        return CellResult(output, error, result.truncated + max(more, 0), final)


@dataclass(frozen=True, slots=True)
class _CellWork:
    """Perform the calls of one cell, in the ``scope`` of its call. ``outcomes`` are those of its tool calls so far."""

    performer: CodePerformer
    cell: Cell
    scope: Scope
    infer: Inference
    outcomes: list[ToolOutcome] = field(default_factory=list)

    async def perform(self, requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        """Perform ``requests``, eight at a time, and return their replies in this order. Raise StorageUnavailable or Internal if
        the turn cannot continue. The other requests were cancelled."""
        replies = [CallReply()] * len(requests)
        waiting = deque(enumerate(requests))

        async def work() -> None:
            while waiting:
                place, request = waiting.popleft()
                replies[place] = await self._perform(request)

        if queries := sum(isinstance(request, Query) for request in requests):
            self.scope.reports.progress("1 sub-call" if queries == 1 else f"{queries} sub-calls")
        await run_concurrently([work() for _ in range(min(_CONCURRENCY, len(requests)))])
        return replies

    async def _perform(self, request: CodeRequest) -> CallReply:
        match request:
            case Query() if self.cell.queries is not None:
                return await self._query(request, self.cell.queries)
            case ToolRequest() if self.cell.tools:
                return await self._call_tool(request)
            case Query():
                return _error(InvalidRequest.code, "This code cannot call a model.")
            case ToolRequest():
                return _error(ToolNotFound.code, "This code cannot call tools.")

    async def _query(self, query: Query, queries: Queries) -> CallReply:
        if self.performer.sub_calls >= queries.max_calls:
            message = f"This turn has made all {queries.max_calls} sub-calls. Answer with what you have."
            return _error(TOO_MANY_SUB_CALLS, message)
        self.performer.sub_calls += 1
        effect = Infer(
            (user(replace_surrogates(query.prompt)),),
            "none",
            queries.temperature,
            queries.max_tokens,
            model=queries.model,
            aside=True,
        )
        try:
            return CallReply((await read_reply(self.infer, effect)).content)
        except _FATAL:
            raise
        except SpassError as error:
            return _error(error.code, error.message)

    async def _call_tool(self, request: ToolRequest) -> CallReply:
        if _is_unread(request.arguments.get("confirm_token"), self.cell):
            return _error(ConfirmTokenInvalid.code, _UNREAD)
        arguments = self.performer.redact(json.dumps({**request.arguments}, ensure_ascii=False))  # as those of a model's calls
        call = ToolCall(new_id("call"), replayable_name(request.name), arguments)
        reply = CallReply()
        reports = self.scope.reports
        with end_open_calls(reports.forward) as forward:
            async with aclosing(self.performer.call_tools(self.scope, (call,))) as events:
                async for event in events:
                    forward(event if isinstance(event, Nested) else Nested(self.scope.agent or "", reports.call_id, event))
                    if isinstance(event, ToolCallFinished):
                        self.outcomes.append(event.outcome)
                        reply = _tool_reply(event.outcome)
        return reply


def _is_unread(token: Json, cell: Cell) -> bool:
    """Return True if a confirm token is not written in the code: then code passes on what no model has read."""
    return isinstance(token, str) and token not in cell.code


def _error(code: str, message: str) -> CallReply:
    return CallReply(error=CallError(code, message))


def _tool_reply(outcome: ToolOutcome) -> CallReply:
    match outcome.result:
        case {"error": {"code": str(code), "message": str(message)}} if not outcome.ok:
            return _error(code, message)
        case result:
            return CallReply(result)


def _outcome(call: ToolCall, cell: CellResult, within: Sequence[ToolOutcome], duration_ms: int) -> ToolOutcome:
    """Return the outcome of a cell. Its result names the approvals that calls ``within`` the cell wait for."""
    approvals = fit_approvals([result for outcome in within for result in waiting_results(outcome)])
    result = fit_cell(cell, approvals)
    waiting = tuple(approval for outcome in within for approval in outcome.waiting)
    versions = tuple(version for outcome in within for version in outcome.versions)
    code = None if cell.error is None else TOOL_FAILED
    return outcome_of(call, CallResult(result, waiting=waiting, versions=versions, code=code), duration_ms)
