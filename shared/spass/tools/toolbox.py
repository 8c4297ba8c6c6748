"""Run tool calls: find the tool, check its arguments, bound its time and its result, and write one audit record.

The result of a failed call is ``{"error": {"code", "message"}}``, so that the model can correct its call. An error that a
corrected call cannot avoid is raised: ``_FATAL`` for models, ``_RAISED_TO_CALLERS`` for callers of the HTTP route.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard, cast

from pydantic import ValidationError

from spass.calls.recorder import Recorder
from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import (
    AdminRequired,
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
    ToolNotFound,
    Unavailable,
    Upstream,
    UpstreamTimeout,
)
from spass.core.events import CallEvent, ToolCallFinished, ToolCallStarted
from spass.core.json import replace_surrogates
from spass.core.messages import Json, ToolCall, ToolSpec
from spass.core.time import now_s
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.store.idempotency import Claim, StoredAnswer
from spass.store.writes import Write
from spass.tenancy.identity import Identity
from spass.tenancy.settings import Cascade
from spass.tools import arguments as tool_arguments
from spass.tools.answers import ToolResult
from spass.tools.arguments import InvalidArguments
from spass.tools.base import (
    ForwardEvent,
    Rag,
    ReportProgress,
    Tool,
    ToolContext,
    ToolError,
    ToolReply,
    ignore_event,
    ignore_progress,
    no_delegates,
    no_editor,
    open_workspaces,
    refuse_code,
    search_wikipedia,
)
from spass.tools.confirm_tokens import ConfirmTokens
from spass.tools.grants import NO_GRANTS, Grants
from spass.tools.lineage_searcher import LineageSearcher
from spass.tools.outcomes import CallResult, error_result, outcome_of
from spass.tools.registry import TOOLS, load_tool
from spass.tools.results import ToolAnswer, truncate_result
from spass.tools.side_by_side import run_side_by_side
from spass.tools.two_step import TwoStepTool

if TYPE_CHECKING:  # most calls need none of these
    from spass.approvals.ending import Ending
    from spass.approvals.record import StoredCall
    from spass.core.code_calls import Sandbox
    from spass.core.memory import Memory
    from spass.tools.chat_models import ChatModels
    from spass.tools.delegates import Delegates
    from spass.tools.editor.protocol import Editor
    from spass.tools.search.engine import SearchEngine
    from spass.workspaces.service import Workspaces

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


class Toolbox:
    """All tools of the gateway. A process has one toolbox. ``tools`` maps each name to ``module:Class``."""

    def __init__(
        self,
        rag: Rag,
        cascade: Cascade,
        lineage_searcher: Callable[[], LineageSearcher] | None = None,
        *,
        chat_models: "Callable[[], ChatModels] | None" = None,
        search_engine: "Callable[[], SearchEngine]" = search_wikipedia,
        workspaces: "Callable[[], Workspaces]" = open_workspaces,
        editor: "Callable[[], Editor]" = no_editor,
        delegates: "Callable[[], Delegates]" = no_delegates,
        sandbox: "Callable[[], Sandbox]" = refuse_code,
        tools: Mapping[str, str] = TOOLS,
        clock: Callable[[], int] = now_s,
    ) -> None:
        self._tools = tools
        self._confirm_tokens = ConfirmTokens(clock)
        self._open_context = partial(
            ToolContext,
            rag=rag,
            cascade=cascade,
            confirm_tokens=self._confirm_tokens,
            lineage_searcher=lineage_searcher,
            chat_models=chat_models,
            search_engine=search_engine,
            workspaces=workspaces,
            editor=editor,
            delegates=delegates,
            sandbox=sandbox,
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def specs(self, names: Sequence[str], identity: Identity | None = None) -> tuple[ToolSpec, ...]:
        """Return the tools ``names`` as a model sees them. With ``identity``, return only those that it may call.

        Raises:
            ToolNotFound: one of the names is unknown.
        """
        tools = [self._find_tool(name) for name in names]
        return tuple(tool.spec() for tool in tools if identity is None or identity.admin or not tool.admin_only)

    async def execute(
        self,
        scope: Scope,
        call: ToolCall,
        *,
        allowed: Collection[str],
        model: str | None = None,
        grants: Grants = NO_GRANTS,
        memory: "Memory | None" = None,
        report_progress: ReportProgress = ignore_progress,
        forward: ForwardEvent = ignore_event,
    ) -> ToolOutcome:
        """Run ``call`` as ``model`` wrote it. Treat tools outside ``allowed`` as unknown. Return a model's mistake as a result.
        ``grants`` is what the agent's file lets the tool do, and ``memory`` that of the operator whose turn it is.

        Raises:
            StorageUnavailable, Internal: the turn cannot continue.
        """
        is_known = call.name in self._tools and call.name in allowed
        recorder = Recorder(scope, CallKind.TOOL, tool=call.name if is_known else None)

        def prepare() -> Tool:
            if not is_known:
                raise ToolError(_no_such_tool(call.name, allowed), code=ToolNotFound.code)
            tool = self._find_tool(call.name)
            _check_admin(tool, scope)
            return _build_call(tool, tool_arguments.parse(call.arguments))

        context = self._context(scope, recorder)
        context = replace(
            context,
            default_model=model,
            report_progress=report_progress,
            forward=forward,
            call_id=call.id,
            grants=grants,
            memory=memory,
        )
        attempt = await self._attempt(context, recorder, prepare, _FATAL)
        return outcome_of(call, attempt, recorder.duration_ms)

    async def run_all(
        self,
        scope: Scope,
        calls: Sequence[ToolCall],
        *,
        allowed: Collection[str],
        model: str | None = None,
        grants: Grants = NO_GRANTS,
        memory: "Memory | None" = None,
    ) -> AsyncGenerator[CallEvent, None]:
        """Run the tool calls of one answer of ``model``, eight at the same time, and yield their events as they happen.

        Every call that was started is finished. Calls after the first ``MAX_CALLS`` are not run; their outcome is an error.
        Closing the iterator cancels the running calls and waits until they have ended.

        Raises:
            StorageUnavailable, Internal: the turn cannot continue. The other calls were cancelled, and all have ended.
        """
        run_call = partial(self.execute, scope, allowed=allowed, model=model, grants=grants, memory=memory)

        async def run(call: ToolCall, report_progress: ReportProgress, forward: ForwardEvent) -> ToolOutcome:
            return await run_call(call, report_progress=report_progress, forward=forward)

        async with aclosing(run_side_by_side(calls[:MAX_CALLS], run, concurrency=_CONCURRENCY)) as events:
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

        def prepare() -> Tool:
            tool = self._find_tool(name)
            _check_admin(tool, scope)
            return _build_call(tool, call.arguments)

        async def run(tool: Tool, context: ToolContext) -> "Json | ToolReply":
            return await tool.run_approved(context, call.effect, ending)

        context = replace(self._context(scope, recorder), grants=grants)
        attempt = await self._attempt(context, recorder, prepare, (*_UNAVOIDABLE, ApprovalDecided, Forbidden), run)
        if attempt.code == TOOL_TIMEOUT:
            raise UpstreamTimeout("The call did not end in time. Read the approval to see whether it was executed.")
        return attempt

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
        tool = self._find_tool(name)
        _check_admin(tool, scope)
        try:
            call = _build_call(tool, arguments)
        except InvalidArguments as error:
            raise error.as_request_error() from None
        recorder = Recorder(scope, CallKind.TOOL, tool=name)
        transaction_answer: ToolAnswer | None = None

        async def record_result(result: Json) -> Sequence[Write]:
            nonlocal transaction_answer
            if claim is None:
                return ()
            body = ToolResult(name=name, result=truncate_result(result)[0], duration_ms=recorder.elapsed_ms)
            transaction_answer = ToolAnswer(body, failed=False, is_stored=True)
            return [await claim.completion(StoredAnswer(body.to_dict(), headers()))]

        try:
            context = replace(self._context(scope, recorder), record_result=record_result)
            attempt = await self._attempt(context, recorder, lambda: call, _RAISED_TO_CALLERS)
        except SpassError as error:
            if error.param and error.param.split(".")[0] in tool.model_fields:
                error.param = f"arguments.{error.param}"
            raise
        if transaction_answer is not None and not attempt.failed:
            return transaction_answer
        result, _ = truncate_result(attempt.result)
        answer = ToolAnswer(ToolResult(name=name, result=result, duration_ms=recorder.duration_ms), attempt.failed)
        if attempt.failed or not _needs_confirmation(call):
            return answer
        stored, expires_at = call.to_record(cast("Mapping[str, Json]", result))
        return replace(
            answer,
            answer_to_store=StoredAnswer({**answer.body.to_dict(), "result": stored}, headers(), expires_at=expires_at),
        )

    async def restore_preview(
        self, scope: Scope, name: str, arguments: Mapping[str, Json], record: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        """Return the body that ``execute_direct`` answered to this call, from the ``record`` of its idempotency key."""
        tool = _build_call(self._find_tool(name), arguments)
        if not _needs_confirmation(tool):
            return record
        stored = cast("Mapping[str, Json]", record["result"])
        return {**record, "result": await tool.restore_preview(scope, self._confirm_tokens, stored)}

    def _find_tool(self, name: str) -> type[Tool]:
        if name not in self._tools:
            raise ToolNotFound(_no_such_tool(name, self._tools), param="name")
        return load_tool(self._tools[name])

    def _context(self, scope: Scope, recorder: Recorder) -> ToolContext:
        return self._open_context(scope.for_call(recorder.request_id))

    async def _attempt(
        self,
        context: ToolContext,
        recorder: Recorder,
        prepare: Callable[[], Tool],
        raise_types: tuple[type[SpassError], ...],
        run: "Callable[[Tool, ToolContext], Awaitable[Json | ToolReply]]" = lambda call, context: call.run(context),
    ) -> CallResult:
        """Run and audit the call. Return its result, or its error as a result.

        Raises:
            SpassError: one of ``raise_types``.
        """
        status = audit.FAILED
        try:
            call = prepare()
            seconds = min(call.time_limit(context), context.scope.deadline.remaining())
            async with asyncio.timeout(seconds):  # wait_for would lose a cancellation that arrives with the result
                result = await run(call, replace(context, call=call))
            status = audit.OK
            return CallResult.of(result)
        except TimeoutError:
            status = TOOL_TIMEOUT
            return error_result(
                ToolError("The tool did not answer in time. Call it once more, or answer without it.", code=status)
            )
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


def _needs_confirmation(tool: Tool) -> TypeGuard[TwoStepTool]:
    """Return whether the call is the first of two steps, whose answer has a confirm token."""
    return isinstance(tool, TwoStepTool) and tool.confirm_token is None


def _check_admin(tool: type[Tool], scope: Scope) -> None:
    if tool.admin_only and not scope.caller.identity.admin:
        raise AdminRequired(
            f"{tool.tool_name} needs a token that gateway.yaml marks as admin; the token of this request is not. Do not call it "
            "again; an administrator can make this change.",
            param="name",
        )


def _no_such_tool(name: str, known: Collection[str]) -> str:
    excerpt = replace_surrogates(name)[:80]
    return f"There is no tool {excerpt!r}. There are: {', '.join(known) or 'none'}."


def _build_call(tool: type[Tool], arguments: Mapping[str, Json]) -> Tool:
    try:
        return tool.model_validate(arguments)
    except ValidationError as error:
        raise tool_arguments.describe_validation_error(error, arguments) from None
