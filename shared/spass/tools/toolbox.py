"""Runs tool calls: finds the tool, checks its arguments, bounds its time and its result, and leaves one audit record.

What goes wrong in a call is its result, ``{"error": {"code", "message"}}``, so that the model reads it and can do better. Only
what the model cannot help at all is raised: see ``_FATAL`` and, for callers who are no models, ``_RAISED_TO_CALLERS``.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard, cast

from pydantic import ValidationError

from spass.aws.idempotency import Claim, StoredAnswer
from spass.aws.writes import Write
from spass.calls.recorder import Recorder
from spass.calls.scope import Scope
from spass.core.errors import (
    AdminRequired,
    ConfirmTokenExpired,
    ConfirmTokenInvalid,
    DeadlineExceeded,
    DepthExceeded,
    EmbeddingModelMismatch,
    Internal,
    InvalidInput,
    InvalidRequest,
    LimitExceeded,
    SpassError,
    StorageUnavailable,
    ToolNotFound,
    Unavailable,
    Upstream,
)
from spass.core.events import ToolCallFinished
from spass.core.json import replace_surrogates
from spass.core.messages import Json, Message, Role, ToolCall, ToolSpec
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.tenancy.identity import Identity
from spass.tenancy.settings import Cascade
from spass.tools import arguments as tool_arguments
from spass.tools.answers import ToolResult
from spass.tools.arguments import InvalidArguments
from spass.tools.base import Rag, Tool, ToolContext, ToolError
from spass.tools.confirm_tokens import ConfirmTokens, RecordResult
from spass.tools.lineage_searcher import LineageSearcher
from spass.tools.registry import TOOLS, load_tool
from spass.tools.results import truncate_result
from spass.tools.two_step import TwoStepTool

MAX_CALLS: Final = 32
"""Of one answer of a model: what one sentence of it may set going."""

_CONCURRENCY: Final = 8
_FATAL: Final = (StorageUnavailable, Internal)
"""With these a turn could not be recorded either: it fails, and may be sent again. A failed upstream costs a turn one tool."""
_RAISED_TO_CALLERS: Final = (
    *(*_FATAL, LimitExceeded, Upstream, Unavailable, DeadlineExceeded, DepthExceeded),  # no other arguments would have avoided it
    *(InvalidInput, EmbeddingModelMismatch, ConfirmTokenInvalid, ConfirmTokenExpired),  # the request itself is refused
)
"""What a caller who is no model hears of by a status, as on the other routes. A model reads of it as far as it is not fatal."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a tool that was called directly. ``kept``: it is already stored under the claim of its request, together with
    what the tool changed. ``record`` is what an Idempotency-Key stores in place of it.
    """

    body: ToolResult
    failed: bool
    kept: bool = False
    record: StoredAnswer | None = None

    @property
    def result(self) -> Json:
        result: Json = self.body.result
        return result


class Toolbox:
    """Every tool of the gateway, at work for one caller after another."""

    def __init__(self, rag: Rag, cascade: Cascade, lineage_searcher: Callable[[], LineageSearcher] | None = None) -> None:
        self._rag = rag
        self._cascade = cascade
        self._ancestry = lineage_searcher
        self._confirmations = ConfirmTokens()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(TOOLS)

    def specs(self, names: Sequence[str], identity: Identity | None = None) -> tuple[ToolSpec, ...]:
        """Return the tools ``names`` as a model sees them. With ``identity``, return only those that it may call.

        Raises:
            ToolNotFound: one of the names is unknown.
        """
        tools = [_find_tool(name) for name in names]
        return tuple(tool.spec() for tool in tools if identity is None or identity.admin or not tool.admin_only)

    async def execute(self, scope: Scope, call: ToolCall, *, allowed: Collection[str]) -> ToolCallFinished:
        """Runs ``call`` as the model wrote it. Tools outside ``allowed`` do not exist for it. Never raises for what the model
        did.

        Raises:
            StorageUnavailable, InternalError: the turn cannot go on.
        """
        known = call.name in TOOLS and call.name in allowed
        recorder = Recorder(scope, CallKind.TOOL, tool=call.name if known else None)

        def prepare() -> Tool:
            if not known:
                raise ToolError(_no_such_tool(call.name, allowed), code=ToolNotFound.code)
            tool = load_tool(call.name)
            _check_admin(tool, scope)
            return _call_of(tool, tool_arguments.parse(call.arguments))

        attempt = await self._attempt(scope, recorder, prepare, _FATAL)
        return _finished_event(call, attempt, recorder.duration_ms)

    async def execute_all(
        self, scope: Scope, calls: Sequence[ToolCall], *, allowed: Collection[str]
    ) -> Sequence[ToolCallFinished]:
        """Runs what a model asked for in one answer, several at the same time; what they come to, in the order of ``calls``. Of
        more than ``MAX_CALLS`` the rest is not run, and the model told so. All have ended before a failure is raised.

        Raises:
            as ``execute``.
        """
        slots = asyncio.Semaphore(_CONCURRENCY)

        async def run(call: ToolCall) -> ToolCallFinished:
            async with slots:
                return await self.execute(scope, call, allowed=allowed)

        answers = await asyncio.gather(*map(run, calls[:MAX_CALLS]), return_exceptions=True)
        finished: list[ToolCallFinished] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            finished.append(answer)
        return [*finished, *(_finished_event(call, _error_result(_too_many_calls())) for call in calls[MAX_CALLS:])]

    async def execute_direct(
        self,
        scope: Scope,
        name: str,
        arguments: Mapping[str, Json],
        claim: Claim | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> ToolAnswer:
        """Runs the tool ``name`` for a caller who is no model. What it could not do is ``{"error": …}`` here too. What it changes
        and its answer under the ``claim``, with the ``headers`` that belong to it by then, are one transaction.

        Raises:
            ToolNotFound: there is no such tool.
            AdminRequired: the tool is for admins, and the caller's token is not an admin's.
            InvalidRequest: the arguments do not fit it.
            SpassError: one of ``_RAISED_TO_CALLERS``; its ``param`` is a path into the body.
        """
        tool = _find_tool(name)
        _check_admin(tool, scope)
        try:
            prepared = _call_of(tool, arguments)
        except InvalidArguments as error:
            raise _invalid_request(error) from None
        recorder = Recorder(scope, CallKind.TOOL, tool=name)
        kept: ToolAnswer | None = None

        async def keep(result: Json) -> Sequence[Write]:
            nonlocal kept
            if claim is None:
                return ()
            body = ToolResult(name=name, result=truncate_result(result)[0], duration_ms=recorder.elapsed_ms)
            kept = ToolAnswer(body, failed=False, kept=True)
            return [await claim.completion(StoredAnswer(body.to_dict(), headers()))]

        try:
            attempt = await self._attempt(scope, recorder, lambda: prepared, _RAISED_TO_CALLERS, keep)
        except SpassError as error:
            if error.param and error.param.split(".")[0] in tool.model_fields:
                error.param = f"arguments.{error.param}"
            raise
        if kept is not None and not attempt.failed:
            return kept
        result, _ = truncate_result(attempt.result)
        answer = ToolAnswer(ToolResult(name=name, result=result, duration_ms=recorder.duration_ms), attempt.failed)
        if attempt.failed or not _needs_confirmation(prepared):
            return answer
        stored, expires_at = prepared.record_of(cast("Mapping[str, Json]", result))
        return replace(answer, record=StoredAnswer({**answer.body.to_dict(), "result": stored}, headers(), expires_at=expires_at))

    async def restored(
        self, scope: Scope, name: str, arguments: Mapping[str, Json], record: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        """Return the body that ``execute_direct`` answered to this call, given what an Idempotency-Key has kept of it."""
        tool = _call_of(_find_tool(name), arguments)
        if not _needs_confirmation(tool):
            return record
        stored = cast("Mapping[str, Json]", record["result"])
        return {**record, "result": await tool.restored(scope, self._confirmations, stored)}

    async def _attempt(
        self,
        scope: Scope,
        recorder: Recorder,
        prepare: Callable[[], Tool],
        raised: tuple[type[SpassError], ...],
        keep: RecordResult | None = None,
    ) -> "_CallResult":
        """The tool's result, or the error that stands for one; audited either way.

        Raises:
            SpassError: one of ``raised``.
        """
        status = audit.FAILED
        try:
            call = prepare()
            seconds = min(call.timeout, scope.deadline.remaining())
            context = ToolContext(
                scope.for_call(recorder.request_id), self._rag, self._cascade, self._confirmations, keep, self._ancestry
            )
            result = await asyncio.wait_for(call.run(context), seconds)
            status = audit.OK
            return _CallResult(result)
        except TimeoutError:
            status = "tool_timeout"
            return _error_result(ToolError("The tool did not answer in time. Try once more, or answer without it.", code=status))
        except (ToolError, SpassError) as error:
            status = error.code
            if isinstance(error, raised):
                raise
            return _error_result(error)
        except asyncio.CancelledError:
            status = audit.CANCELLED
            raise
        finally:
            await recorder.finish(status)


@dataclass(frozen=True, slots=True)
class _CallResult:
    result: Json
    failed: bool = False


def _needs_confirmation(tool: Tool) -> TypeGuard[TwoStepTool]:
    """Return whether the call is the first of two steps, whose answer holds a confirm token."""
    return isinstance(tool, TwoStepTool) and tool.confirm_token is None


def _find_tool(name: str) -> type[Tool]:
    if name not in TOOLS:
        raise ToolNotFound(_no_such_tool(name, TOOLS), param="name")
    return load_tool(name)


def _check_admin(tool: type[Tool], scope: Scope) -> None:
    if tool.admin_only and not scope.caller.identity.admin:
        raise AdminRequired(
            f"{tool.tool_name} needs a token that gateway.yaml marks as admin, and this request has another. Do not call it "
            "again; an administrator can make this change.",
            param="name",
        )


def _no_such_tool(name: str, known: Collection[str]) -> str:
    shown = replace_surrogates(name)[:80]
    return f"There is no tool {shown!r}. There are: {', '.join(known) or 'none'}."


def _too_many_calls() -> ToolError:
    message = (
        f"This call was not made: an answer may ask for {MAX_CALLS} tool calls. Ask for fewer at once, and for the rest then."
    )
    return ToolError(message, code="too_many_tool_calls")


def _call_of(tool: type[Tool], arguments: Mapping[str, Json]) -> Tool:
    try:
        return tool.model_validate(arguments)
    except ValidationError as error:
        raise tool_arguments.describe_validation_error(error, arguments) from None


def _invalid_request(error: InvalidArguments) -> InvalidRequest:
    """``error``, said to a caller who sent the arguments as part of a body."""
    found = error.errors or ({"loc": [], "message": error.message, "type": error.code},)
    places = [["arguments", *cast("list[Json]", one["loc"])] for one in found]
    errors: list[Json] = [{**one, "loc": ["body", *place]} for one, place in zip(found, places, strict=True)]
    return InvalidRequest(error.message, param=".".join(map(str, places[0])), details={"errors": errors})


def _error_result(error: ToolError | SpassError) -> _CallResult:
    said: dict[str, Json] = {"code": error.code, "message": error.message}
    if isinstance(error, InvalidArguments) and error.errors:
        said["errors"] = [*error.errors]
    return _CallResult({"error": said}, failed=True)


def _finished_event(call: ToolCall, attempt: _CallResult, duration_ms: int = 0) -> ToolCallFinished:
    result, text = truncate_result(attempt.result)
    message = Message(Role.TOOL, text, tool_call_id=call.id)
    return ToolCallFinished(call, tool_arguments.arguments_for_display(call.arguments), result, message, duration_ms)
