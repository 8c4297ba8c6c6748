"""An approval: a tool call that waits for a person, stored as it will run. It changes once, when it ends.

The item holds everything that people see. It also holds what the call needs to run (``effect``), until the approval ends. A large
call is an object instead, which the bucket's lifecycle removes within days.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final, Self

from spass.core.codec import AsJson
from spass.core.errors import ApprovalNotFound
from spass.core.ids import AgentName, ApprovalId, SessionId, UserId, new_id
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.core.time import Timestamp, epoch_s, timestamp
from spass.store.codec import decode
from spass.store.table import TTL
from spass.store.writes import Item, Value

DECIDE_SECONDS: Final = 24 * 3600
"""Seconds in which a person can decide."""
_KEEP_SECONDS: Final = 30 * 24 * 3600


class ApprovalStatus(StrEnum):
    """The status of an approval. ``expired`` is not stored: it follows from the time."""

    PENDING = "pending"
    EXECUTED = "executed"
    DENIED = "denied"
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call as it will run: its ``arguments``, and the ``effect``, which the tool made when it previewed the call."""

    arguments: Mapping[str, Json]
    effect: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call of ``tool`` by ``agent`` in a session of ``user``. ``message_id`` names the stream of its turn, if it has one.

    ``arguments`` is None if only the object of a large call holds them. ``status`` is never ``EXPIRED`` here: see ``status_at``.
    ``reason`` is the person's. An executed approval has a ``result``, a failed one an ``error`` (``{"code", "message"}``).
    """

    id: ApprovalId
    user: UserId
    tool: str
    agent: AgentName
    session: SessionId
    message_id: str | None
    preview: Json
    rich: tuple[Json, ...]
    arguments: Annotated[Mapping[str, Json] | None, AsJson()]
    created_at: Timestamp
    expires_at: Timestamp
    status: ApprovalStatus = ApprovalStatus.PENDING
    is_large: bool = False
    reason: str | None = None
    result: Json = None
    error: Mapping[str, Json] | None = None
    decided_at: Timestamp | None = None

    @classmethod
    def new(
        cls,
        *,
        user: UserId,
        tool: str,
        agent: AgentName,
        session: SessionId,
        message_id: str | None,
        preview: Json,
        rich: Sequence[Json],
        arguments: Mapping[str, Json],
        now: float,
    ) -> Self:
        """Return an approval that waits from ``now`` (seconds since the epoch) for 24 hours."""
        return cls(
            id=ApprovalId(new_id("apr")),
            user=user,
            tool=tool,
            agent=agent,
            session=session,
            message_id=message_id,
            preview=preview,
            rich=tuple(rich),
            arguments=arguments,
            created_at=timestamp(now),
            expires_at=timestamp(now + DECIDE_SECONDS),
        )

    def status_at(self, now: float) -> ApprovalStatus:
        """Return the status at ``now``, in seconds since the epoch."""
        is_late = self.status is ApprovalStatus.PENDING and timestamp(now) >= self.expires_at
        return ApprovalStatus.EXPIRED if is_late else self.status

    @property
    def is_shown_whole(self) -> bool:
        """Return True if the preview and the blocks show all that the call does. Those of the release before 0.1.0 do not say it:
        without a sign that nothing was cut, nobody has seen the whole call."""
        preview: Mapping[str, Json] = self.preview if isinstance(self.preview, Mapping) else {}
        complete = preview.get("complete")
        if isinstance(complete, bool):
            return complete
        is_cut = any(isinstance(block, Mapping) and block.get("truncated") for block in self.rich)
        return not (is_cut or "omitted" in preview or preview.keys() == {"note"})

    def after(
        self,
        status: ApprovalStatus,
        reason: str | None,
        now: float,
        *,
        result: Json = None,
        error: Mapping[str, Json] | None = None,
    ) -> Self:
        """Return the approval after its end ``now``: executed with a ``result``, failed with an ``error``, or denied."""
        return replace(self, status=status, reason=reason, result=result, error=error, decided_at=timestamp(now))


@dataclass(frozen=True, slots=True)
class _Shown:
    preview: Json
    rich: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class _End:
    result: Json = None
    error: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class _Parts:
    """The attributes of an approval that hold several of its fields."""

    shown: Annotated[_Shown, AsJson()]
    outcome: Annotated[_End, AsJson()] = _End()


def call_object(approval: ApprovalId) -> str:
    """Return the key of the object that holds a large call."""
    return f"apr/{approval}"


def encode_new(approval: Approval, shown: bytes, inline: Mapping[str, bytes]) -> dict[str, Value]:
    """Return the attributes of the item of a pending approval. ``shown`` are its preview and its blocks (``encode_shown``), and
    ``inline`` the parts of the call that the item holds, both as JSON."""
    attributes: dict[str, Value] = {
        "user": approval.user,
        "tool": approval.tool,
        "agent": approval.agent,
        "session": approval.session,
        "message_id": approval.message_id,
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "status": approval.status.value,
        "is_large": approval.is_large,
        "shown": shown.decode(),
        TTL: epoch_s(approval.created_at) + _KEEP_SECONDS,
    }
    return attributes | {name: part.decode() for name, part in inline.items()}


def encode_shown(approval: Approval) -> bytes:
    """Return the preview and the blocks for people as JSON."""
    return dump_bytes({"preview": approval.preview, "rich": [*approval.rich]})


def encode_end(approval: Approval) -> dict[str, Value]:
    """Return the attributes that the end of an approval sets."""
    return {
        "status": approval.status.value,
        "reason": approval.reason,
        "decided_at": approval.decided_at,
        "outcome": dump_bytes({"result": approval.result, "error": approval.error}).decode(),
    }


def decode_approval(item: Item) -> Approval:
    """Return the approval in an item."""
    parts = decode(_Parts, item)
    shown, end = parts.shown, parts.outcome
    return decode(
        Approval,
        item,
        id=ApprovalId(str(item["sk"])),
        preview=shown.preview,
        rich=shown.rich,
        result=end.result,
        error=end.error,
    )


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
