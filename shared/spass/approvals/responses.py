"""The answers of ``/a1/approvals``, and the body of a decision."""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from spass.approvals.record import Approval, ApprovalStatus
from spass.core.ids import AgentName, ApprovalId, id_pattern
from spass.core.text_checks import limit_bytes, reject_nul
from spass.tenancy.response_model import Count, DateTime, JsonObject, JsonValue, NextCursor, ResponseModel, SessionIdText
from spass.tenancy.strict_body import StrictBody

_MAX_REASON_BYTES: Final = 4096
_MAX_SEEN_CHARACTERS: Final = 4096

_BLOCKS: Final = {"type": "array", "items": {"type": "object"}}
ApprovalIdText = Annotated[ApprovalId, WithJsonSchema({"type": "string", "pattern": f"^{id_pattern('apr')}$"})]


class DecideApproval(StrictBody):
    """A person's decision. The agent's model reads the `reason` in later turns. `seen` shows that the person has read the whole
    change."""

    decision: Literal["approve", "deny"]
    reason: Annotated[str, AfterValidator(limit_bytes(_MAX_REASON_BYTES)), AfterValidator(reject_nul)] | None = Field(
        default=None, description=f"At most {_MAX_REASON_BYTES} bytes of UTF-8."
    )
    seen: Annotated[str, Field(max_length=_MAX_SEEN_CHARACTERS)] | None = Field(
        default=None,
        description="The last cursor of `…/changes`. Approving needs it if `complete` in `preview` is false.",
    )


class ApprovalView(ResponseModel):
    """A tool call that waits for a person, or that a person has decided. `arguments` is null when a large call is older than two
    days. `result` is there when the call was executed, `error` when it failed. If `complete` in `preview` is false, the diffs in
    `rich` are not all of the change: `…/changes` has the whole."""

    id: ApprovalIdText
    status: ApprovalStatus
    tool: str
    arguments: JsonObject | None
    preview: JsonValue
    rich: Annotated[tuple[Any, ...], WithJsonSchema(_BLOCKS)]
    agent: AgentName
    session_id: SessionIdText
    message_id: str | None
    reason: str | None
    result: JsonValue
    error: JsonObject | None
    created_at: DateTime
    expires_at: DateTime
    decided_at: DateTime | None

    @classmethod
    def of(cls, approval: Approval, now: float) -> "ApprovalView":
        """Return the view of ``approval`` at ``now``, in seconds since the epoch."""
        shown = {name: getattr(approval, name) for name in cls.model_fields if name not in ("status", "session_id")}
        return cls.model_validate({**shown, "status": approval.status_at(now), "session_id": approval.session})


class ApprovalPage(ResponseModel):
    """A page of the user's approvals, newest first."""

    approvals: list[ApprovalView]
    next_cursor: NextCursor


class ShownChange(ResponseModel):
    """The whole diff of one file. `added` and `removed` count lines. If the file is not text, `unified` names the SHA-256 of its
    content."""

    path: str
    status: Literal["added", "changed", "deleted"]
    added: Count
    removed: Count
    unified: str
    truncated: bool


class ChangePage(ResponseModel):
    """A page of what a call that waits changes, by path. The last cursor is the value of `seen` in the decision."""

    changes: tuple[ShownChange, ...]
    next_cursor: NextCursor
