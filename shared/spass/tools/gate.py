"""Store a gated call until a person decides, and run a call that a person has approved."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spass.approvals.ending import Ending
from spass.approvals.record import Approval, StoredCall
from spass.approvals.responses import ApprovalView
from spass.approvals.store import put_approval
from spass.calls.scope import CurrentSession, Scope
from spass.core.errors import ApprovalDecided, ConfirmTokenInvalid, SpassError
from spass.core.messages import Json
from spass.store.writes import Write
from spass.tools.base import CallResult, ToolError
from spass.tools.consent import WriteResult, to_result
from spass.tools.previews import Preview
from spass.tools.results import truncate_result


def check_can_wait(scope: Scope) -> CurrentSession:
    """Return the session in which a call can wait for a person. Call this before any work.

    Raises:
        ToolError: there is none, so no person could decide.
    """
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
