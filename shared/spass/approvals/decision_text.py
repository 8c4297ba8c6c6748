"""The outcome of an approval as a model reads it in later turns."""

from collections.abc import Mapping

from spass.approvals.record import Approval, ApprovalStatus
from spass.core.errors import ApprovalNotFound
from spass.core.messages import Json


def decision_text(approval: Approval | None, now: float) -> Mapping[str, Json] | None:
    """Return ``{"result": …}`` or ``{"error": …}``, the outcome of a call that waited, or None if it still waits at ``now``.
    ``approval`` is None if it was deleted."""
    if approval is None:
        return _error(
            ApprovalNotFound.code,
            "This call waited for the user's approval. What came of it is no longer known; check whether the change was made.",
        )
    match approval.status_at(now):
        case ApprovalStatus.PENDING:
            return None
        case ApprovalStatus.EXECUTED:
            return {"result": approval.result}
        case ApprovalStatus.FAILED:
            return {"error": approval.error or {}}
        case ApprovalStatus.DENIED:
            reason = f" The reason: {approval.reason}" if approval.reason else ""
            return _error("approval_denied", f"The user denied this call, and nothing was changed.{reason}")
        case ApprovalStatus.EXPIRED:
            return _error("approval_expired", "The user did not approve this call within 24 hours. Nothing was changed.")


def _error(code: str, message: str) -> Mapping[str, Json]:
    return {"error": {"code": code, "message": message}}
