"""Run tool calls: find the tool, check its arguments, bound its time and its result, and write one audit record.

The result of a failed call is ``{"error": {"code", "message"}}``, so that the model can correct its call. An error that a
corrected call cannot avoid is raised: ``_FATAL`` for models, ``_RAISED_TO_CALLERS`` for callers of the HTTP route.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from spass.calls.recorder import Recorder
from spass.calls.scope import NO_REPORTS, CallReports, Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import (
    ApprovalDecided,
    ConfirmTokenExpired,
    ConfirmTokenInvalid,
    DeadlineExceeded,
    DepthExceeded,
    EmbeddingModelMismatch,
    Forbidden,
    Internal,
    InvalidInput,
    LimitExceeded,
    SpassError,
    StorageUnavailable,
    Unavailable,
    Upstream,
    UpstreamTimeout,
)
from spass.core.events import CallEvent, ToolCallFinished, ToolCallStarted
from spass.core.messages import Json, ToolCall, ToolSpec
from spass.core.time import now_s
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.store.idempotency import Claim, StoredResponse
from spass.store.writes import Write
from spass.tools.base import CallResult, InvalidArguments, Returned, ToolError
from spass.tools.concurrent_calls import run_calls
from spass.tools.confirm_tokens import ConfirmTokens
from spass.tools.grants import NO_GRANTS, Grants
from spass.tools.responses import ToolResult
from spass.tools.results import ToolAnswer, error_result, outcome_of, truncate_result
from spass.tools.toolset import NO_TURN, ReadyCall, Toolset, ToolTurn
from spass.tools.turn_tools import TurnTools, needs_confirmation

if TYPE_CHECKING:  # most calls need none of these
    from spass.approvals.ending import Ending
    from spass.approvals.record import StoredCall

MAX_CALLS: Final = 32
"""Tool calls of one model answer that are run. Further calls get an error."""

TOOL_TIMEOUT: Final = "tool_timeout"
"""The code of the error of a call that did not end in time."""

_CONCURRENCY: Final = 8
_FATAL: Final = (StorageUnavailable, Internal)
"""Errors that end the turn, because it could not be recorded either. The client may send it again."""
_UNAVOIDABLE: Final = (*_FATAL, LimitExceeded, Upstream, Unavailable, DeadlineExceeded, DepthExceeded)
"""Errors that other arguments would not avoid."""
_RAISED_TO_CALLERS: Final = (*_UNAVOIDABLE, InvalidInput, EmbeddingModelMismatch, ConfirmTokenInvalid, ConfirmTokenExpired)
"""Errors that the HTTP route reports by a status, as other routes do. A model reads them as results unless they are fatal."""

_TOO_MANY_CALLS: Final = error_result(
    ToolError(
        f"This call was not run: one answer may have {MAX_CALLS} tool calls. Make fewer calls now, and the others later.",
        code="too_many_tool_calls",
    )
)


OpenToolsets: TypeAlias = Callable[[ToolTurn], Sequence[Toolset]]
"""Return all toolsets of a process, for the calls of one turn."""


class Toolbox:
    """All tools of the gateway. A process has one toolbox. ``clock`` returns seconds since the epoch."""

    def __init__(self, open_toolsets: OpenToolsets, *, clock: Callable[[], int] = now_s) -> None:
        self._open_toolsets = open_toolsets
        self._confirm_tokens = ConfirmTokens(clock)

    def specs(self, scope: Scope, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the tools ``names`` as a model sees them, without tools that the caller may not call.

        Raises:
            ToolNotFound: one of the names is unknown.
        """
        return self._open(NO_TURN).specs(scope, names)

    async def execute(
        self,
        scope: Scope,
        call: ToolCall,
        reports: CallReports = NO_REPORTS,
        *,
        allowed: Collection[str],
        turn: ToolTurn = NO_TURN,
    ) -> ToolOutcome:
        """Run ``call`` as a model wrote it. Treat tools outside ``allowed`` as unknown. Return a model's mistake as a result.
        Raise StorageUnavailable or Internal if the turn cannot continue."""
        tools = self._open(turn, allowed)
        recorder = Recorder(scope, CallKind.TOOL, tool=call.name if tools.source(call.name) else None)
        prepare = partial(tools.call, scope, call.name, call.arguments)
        result = await _attempt(scope.for_call(recorder.request_id, reports), recorder, prepare, _FATAL)
        return outcome_of(call, result, recorder.duration_ms)

    async def run_all(
        self, scope: Scope, calls: Sequence[ToolCall], *, allowed: Collection[str], turn: ToolTurn = NO_TURN
    ) -> AsyncGenerator[CallEvent, None]:
        """Run the tool calls of one answer of a model, eight at the same time, and yield their events as they happen.

        Every call that was started is finished. Calls after the first ``MAX_CALLS`` are not run; their outcome is an error.
        Closing the iterator cancels the running calls and waits until they have ended.

        Raises:
            StorageUnavailable, Internal: the turn cannot continue. The other calls were cancelled, and all have ended.
        """
        run = partial(self.execute, scope, allowed=allowed, turn=turn)
        async with aclosing(run_calls(calls[:MAX_CALLS], run, concurrency=_CONCURRENCY)) as events:
            async for event in events:
                yield event
        for call in calls[MAX_CALLS:]:
            yield ToolCallStarted(call)
            yield ToolCallFinished(outcome_of(call, _TOO_MANY_CALLS))

    async def execute_approved(
        self, scope: Scope, name: str, call: "StoredCall", ending: "Ending", *, grants: Grants = NO_GRANTS
    ) -> CallResult:
        """Run the tool ``name`` as ``call`` was stored, and end its approval in the transaction of the change. ``grants`` is what
        the agent's file lets the tool do now. Return the error of a call that failed as a result.

        Raises:
            ApprovalDecided: another decision ended the approval.
            Forbidden: the caller lacks a right that the call needs.
            SpassError: one of ``_UNAVOIDABLE``. The approval tells whether the call was executed; if not, it still waits.
        """
        recorder = Recorder(scope, CallKind.TOOL, tool=name)
        prepare = partial(self._open(ToolTurn(grants=grants)).call, scope, name, call.arguments)

        async def run(ready: ReadyCall, scope: Scope) -> Returned:
            return await ready.run_approved(scope, call.effect, ending)

        raised = (*_UNAVOIDABLE, ApprovalDecided, Forbidden)
        result = await _attempt(scope.for_call(recorder.request_id), recorder, prepare, raised, run)
        if result.code == TOOL_TIMEOUT:
            raise UpstreamTimeout("The call did not end in time. Read the approval to see whether it was executed.")
        return result

    async def execute_direct(
        self,
        scope: Scope,
        name: str,
        arguments: Mapping[str, Json],
        claim: Claim | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> ToolAnswer:
        """Run the tool ``name`` for the HTTP route. A failure of the tool is a result ``{"error": …}`` here too.

        The change of the tool and its answer under ``claim``, with ``headers``, are written in one transaction.

        Raises:
            ToolNotFound: there is no such tool.
            AdminRequired: the tool needs an admin's token.
            InvalidRequest: the arguments are not valid for it.
            SpassError: one of ``_RAISED_TO_CALLERS``; its ``param`` is a path into the body.
        """
        transaction_answer: ToolAnswer | None = None

        async def record_result(result: Json) -> Sequence[Write]:
            nonlocal transaction_answer
            if claim is None:
                return ()
            body = ToolResult(name=name, result=truncate_result(result)[0], duration_ms=recorder.elapsed_ms)
            transaction_answer = ToolAnswer(body, failed=False, is_stored=True)
            return [await claim.completion(StoredResponse(body.to_dict(), headers()))]

        tools = replace(self._open(NO_TURN), record_result=record_result)
        try:
            call = tools.call(scope, name, arguments)
        except InvalidArguments as error:
            raise error.as_request_error() from None
        recorder = Recorder(scope, CallKind.TOOL, tool=name)
        try:
            attempt = await _attempt(scope.for_call(recorder.request_id), recorder, lambda: call, _RAISED_TO_CALLERS)
        except SpassError as error:
            (spec,) = tools.specs(scope, [name])
            if error.param and error.param.split(".")[0] in cast("Mapping[str, Json]", spec.parameters.get("properties", {})):
                error.param = f"arguments.{error.param}"
            raise
        if transaction_answer is not None and not attempt.failed:
            return transaction_answer
        answer = ToolAnswer(ToolResult(name=name, result=attempt.result, duration_ms=recorder.duration_ms), attempt.failed)
        if attempt.failed or not needs_confirmation(call):
            return answer
        record, expires_at = call.to_record(cast("Mapping[str, Json]", attempt.result))
        stored = StoredResponse({**answer.body.to_dict(), "result": record}, headers(), expires_at=expires_at)
        return replace(answer, answer_to_store=stored)

    async def restore_preview(
        self, scope: Scope, name: str, arguments: Mapping[str, Json], record: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        """Return the body that ``execute_direct`` answered to this call, from the ``record`` of its idempotency key."""
        call = self._open(NO_TURN).call(scope, name, arguments)
        if not needs_confirmation(call):
            return record
        stored = cast("Mapping[str, Json]", record["result"])
        return {**record, "result": await call.restore_preview(scope, stored)}

    def _open(self, turn: ToolTurn, offered: Collection[str] | None = None) -> TurnTools:
        return TurnTools(self._open_toolsets(turn), self._confirm_tokens, offered, turn.grants.approval)


async def _attempt(
    scope: Scope,
    recorder: Recorder,
    prepare: Callable[[], ReadyCall],
    raise_types: tuple[type[SpassError], ...],
    run: Callable[[ReadyCall, Scope], Awaitable[Returned]] = lambda call, scope: call.run(scope),
) -> CallResult:
    """Run and audit the call. Return its result, or its error as a result."""
    status = audit.FAILED
    try:
        call = prepare()
        async with asyncio.timeout(min(call.seconds, scope.deadline.remaining())):  # wait_for could lose a cancellation
            returned = await run(call, scope)
        result = _limit(returned)
        status = audit.OK
        return result
    except TimeoutError:
        status = TOOL_TIMEOUT
        return error_result(ToolError("The tool did not answer in time. Call it once more, or answer without it.", code=status))
    except (ToolError, SpassError) as error:
        status = error.code
        if isinstance(error, raise_types):
            raise
        return error_result(error)
    except asyncio.CancelledError:
        status = audit.CANCELLED
        raise
    finally:
        await recorder.finish(status)


def _limit(returned: Returned) -> CallResult:
    """Return the result that a tool has ``returned``. Only the beginning of a result that is too long is kept."""
    whole = returned if isinstance(returned, CallResult) else CallResult(returned)
    try:
        result, text = truncate_result(whole.result)
    except (TypeError, ValueError, RecursionError):
        raise ToolError("The tool returned something that cannot be read. Answer without it.") from None
    return replace(whole, result=result, text=text)
