"""The parameters of the routes of approvals: an id, a status, a session."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from spass.approvals.record import ApprovalStatus
from spass.core.errors import ApprovalNotFound
from spass.core.ids import CLIENT_ID, ApprovalId, id_pattern
from spass.web.routing import reject_repeated, require_form

ApprovalParameter = Annotated[
    ApprovalId,
    Path(description="An approval's id."),
    require_form(id_pattern("apr"), ApprovalNotFound, "You have no such approval.", "approval_id"),
]


@dataclass(frozen=True, slots=True)
class WantedApprovals:
    """The approvals that the client asks for: those with a status, those of a session. None does not filter."""

    status: ApprovalStatus | None
    session_id: str | None


_EMPTY_IS_NONE: Final = BeforeValidator(lambda value: None if value == "" else value)


async def _wanted(
    request: Request,
    status: Annotated[ApprovalStatus | None, Query(description="Only approvals with this status."), _EMPTY_IS_NONE] = None,
    session_id: Annotated[
        str | None, Query(pattern=CLIENT_ID, description="Only approvals of this session."), _EMPTY_IS_NONE
    ] = None,
) -> WantedApprovals:
    reject_repeated(request, ("status", "session_id"))
    return WantedApprovals(status, session_id)


ApprovalFilter = Annotated[WantedApprovals, Depends(_wanted)]
