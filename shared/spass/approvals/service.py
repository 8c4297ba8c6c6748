"""The approvals of the routes, for the user of a scope."""

import time

from spass.approvals.changes import read_changes
from spass.approvals.record import ApprovalStatus
from spass.approvals.responses import ApprovalPage, ApprovalView, ChangePage
from spass.approvals.store import list_approvals, read_approval
from spass.calls.scope import Scope
from spass.core.ids import ApprovalId
from spass.core.time import Clock


class Approvals:
    """The approvals of all tenants. ``clock`` returns seconds since the epoch."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock

    async def get(self, scope: Scope, approval: ApprovalId) -> ApprovalView:
        """Return one of the user's approvals. Errors are those of ``read_approval``."""
        user = scope.caller.require_user()
        return ApprovalView.of(await read_approval(scope.store, user, approval), self._clock())

    async def page(
        self, scope: Scope, status: ApprovalStatus | None, session: str | None, cursor: str | None, limit: int
    ) -> ApprovalPage:
        """Return a page of the user's approvals. Parameters and errors are those of ``list_approvals``."""
        user, now = scope.caller.require_user(), self._clock()
        return await list_approvals(scope.store, user, now, status=status, session=session, cursor=cursor, limit=limit)

    async def changes(self, scope: Scope, approval: ApprovalId, cursor: str | None, limit: int) -> ChangePage:
        """Return a page of what a call of the user would change. Errors are those of ``read_changes``."""
        user, now = scope.caller.require_user(), self._clock()
        return await read_changes(scope.store, user, approval, now, cursor=cursor, limit=limit)
