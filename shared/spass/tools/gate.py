"""Store a gated call until a person decides, and run a call that a person has approved."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spass.approvals.ending import Ending
from spass.approvals.record import Approval, StoredCall
from spass.approvals.responses import ApprovalView
from spass.approvals.store import put_approval
from spass.calls.scope import CurrentSession, Scope
from spass.core.errors import ApprovalDecided, ConfirmTokenInvalid, SpassError
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.store.writes import Write
from spass.tools.base import CallResult, ToolError
from spass.tools.confirm_tokens import WriteResult, to_result
from spass.tools.results import MAX_RESULT_BYTES, MAX_RICH_BYTES, json_size, truncate_result, truncate_rich
from spass.tools.workspace_diffs import edit_result, rich_diffs
from spass.workspaces.diff import FileDiff

MAX_PREVIEW_BYTES: Final = MAX_RESULT_BYTES - 2048
"""Bytes of JSON of a preview that a model reads. The rest of the result is for its other fields."""
_INLINE_BYTES: Final = 256 * 1024
"""Bytes of JSON of the preview and the blocks that people see."""
_INLINE_ARGUMENTS_BYTES: Final = 64 * 1024
_MIN_INLINE_BYTES: Final = 96 * 1024
_MIN_RICH_BYTES: Final = 16 * 1024
_OTHER_FIELDS_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Preview:
    """A preview for people with its ``rich`` blocks, and the one that the model reads."""

    shown: Mapping[str, Json]
    for_model: Mapping[str, Json]
    rich: tuple[Json, ...] = ()


def check_can_wait(scope: Scope) -> CurrentSession:
    """Return the session in which a call can wait for a person. Call this before any work. Raise ToolError if there is none, so
    no person could decide."""
    session = scope.current_session
    if session is None or session.turn_id is None:
        raise ToolError(
            "This call needs a person's approval, which is not possible here: the agent was asked once, without a session. "
            "Nothing was changed. Answer without it, and say that it needs a session.",
            code="approval_unavailable",
        )
    if not scope.caller.is_person:
        raise ToolError(
            "This call needs a person's approval, which is not possible here: the request names no user. Nothing was changed. "
            "Answer without it, and say that the request needs the header SPASS-User-Id.",
            code="approval_unavailable",
        )
    return session


async def request_approval(scope: Scope, tool: str, call: StoredCall, preview: Preview) -> CallResult:
    """Store ``call`` of ``tool`` until a person decides, who sees ``preview``. Return what the model reads instead of its result.

    Raises:
        ToolError: the same as ``check_can_wait``.
        SessionBusy: the turn has lost its session; nothing is stored.
        StorageUnavailable: whether the call is stored is unknown.
    """
    session, now = check_can_wait(scope), time.time()
    if scope.agent is None:
        raise RuntimeError("only an agent's file can gate a call")
    approval = Approval.new(
        user=scope.caller.require_user(),
        tool=tool,
        agent=scope.agent,
        session=session.id,
        message_id=session.message_id,
        preview=preview.shown,
        rich=preview.rich,
        arguments=call.arguments,
        now=now,
    )
    if not approval.is_shown_whole:
        approval = replace(approval, preview={**preview.shown, "changes": f"/a1/approvals/{approval.id}/changes"})
    await put_approval(scope.store, approval, call, session.turn_id or "")
    result: Json = {
        "approval_required": True,
        "approval_id": approval.id,
        "expires_at": approval.expires_at,
        "preview": preview.for_model,
        "message": "Nothing has been changed yet. The user was asked to approve this call, which then runs exactly as previewed. "
        "You cannot approve it. Do not make the call again; continue without its result, and say what waits for approval.",
    }
    return CallResult(result, approval.rich, ApprovalView.of(approval, now).to_dict(), (approval.id,))


@dataclass(frozen=True, slots=True)
class ApprovalConsent:
    """The ``Consent`` of a person: ``ending`` ends the approval of a call whose preview showed ``state``."""

    ending: Ending
    state: str

    def allows(self, state: str, /) -> bool:
        return self.state == state

    async def writes(self, written: WriteResult, /) -> Sequence[Write]:
        return await self.ending.execute(truncate_result(to_result(written))[0])

    def refusal(self) -> SpassError:
        return decided_meanwhile()

    async def outdated(self, _: Scope, /) -> SpassError:
        return ConfirmTokenInvalid(
            "The data in the preview has changed since, so this call was not executed. Nothing was changed. Let the agent make "
            "the call again to see what it would do now."
        )


def decided_meanwhile() -> ApprovalDecided:
    """Return the error of a decision that another one preceded. ``Ending.refusal`` knows more."""
    return ApprovalDecided("Another request has decided this approval.")


def preview_call(preview: Mapping[str, Json]) -> Preview:
    """Return the preview of a tool in two steps. The tool bounds its size."""
    is_long = len(dump_bytes(preview)) > MAX_PREVIEW_BYTES
    return Preview(preview, {"note": "The preview is too long to be shown here."} if is_long else preview)


def preview_change(workspace: str, diffs: Sequence[FileDiff], answer: str, arguments: Mapping[str, Json], why: str) -> Preview:
    """Return the preview of a change of ``workspace``, whose whole ``diffs`` are stored with the call. ``why`` says in a sentence
    why the change waits. ``complete`` says whether the blocks show all of the diffs; if not, ``omitted_bytes`` counts what is
    missing. Preview, blocks and ``arguments`` together fit in one event of a stream.
    """
    room = max(_MIN_INLINE_BYTES, _INLINE_BYTES - max(0, json_size(arguments) - _INLINE_ARGUMENTS_BYTES))
    shown = _preview(workspace, why, diffs, answer, room - _MIN_RICH_BYTES)
    blocks = rich_diffs(diffs)
    rich = truncate_rich(blocks, min(MAX_RICH_BYTES, room - json_size(shown) - _OTHER_FIELDS_BYTES))
    sizes: dict[str, Json] = {"file_count": len(diffs), "complete": rich == blocks}
    if rich != blocks:
        inline = sum(len(str(block["unified"]).encode()) for block in rich if isinstance(block, Mapping))
        sizes["omitted_bytes"] = sum(len(diff.unified.encode()) for diff in diffs) - inline
    for_model = _preview(workspace, why, diffs, answer, MAX_PREVIEW_BYTES - _OTHER_FIELDS_BYTES)
    return Preview({**shown, **sizes}, {**for_model, **sizes}, rich)


def _preview(workspace: str, why: str, diffs: Sequence[FileDiff], answer: str, max_bytes: int) -> dict[str, Json]:
    result = edit_result(None, diffs, answer, max_bytes=max_bytes - _OTHER_FIELDS_BYTES - json_size(why))
    return {"workspace": workspace, "why": why, **{name: value for name, value in result.items() if name != "version"}}
