"""Decide about approvals: run the stored call within the agent's file as it is now, or deny it. No model takes part."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.agents.registry import AgentRegistry
from spass.approvals.changes import check_seen
from spass.approvals.ending import Ending, decided
from spass.approvals.record import Approval, ApprovalStatus, StoredCall
from spass.approvals.responses import ApprovalView, DecideApproval
from spass.approvals.store import read_with_call
from spass.calls.scope import Scope
from spass.core.errors import AgentNotFound, ApprovalDecided, ToolNotFound
from spass.core.ids import ApprovalId
from spass.core.messages import Json
from spass.core.time import Clock
from spass.tools.base import ToolError
from spass.tools.results import error_result

if TYPE_CHECKING:
    from spass.store.idempotency import Completion
    from spass.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of people about calls that wait. ``clock`` returns seconds since the epoch."""

    agents: Callable[[], AgentRegistry]
    toolbox: "Callable[[], Toolbox]"
    clock: Clock = time.time

    async def decide(
        self, scope: Scope, approval_id: ApprovalId, decision: DecideApproval, record: "Completion[ApprovalView] | None" = None
    ) -> ApprovalView:
        """Carry out the decision of the user of ``scope`` and return the approval after it. The end of the approval, the change
        of an approved call and the answer for ``record`` are one transaction.

        Raises:
            ApprovalNotFound: the user has no such approval.
            ApprovalDecided: the approval has ended, also by a decision at the same time.
            PreviewNotSeen: the user has not read all that the call does; it still waits.
            Forbidden: the call needs a right that the request lacks; it still waits for somebody who has it.
            SpassError: the gateway cannot run the call now. The approval tells whether it was executed; if not, it still waits.
        """
        approval, call = await read_with_call(scope.store, scope.caller.require_user(), approval_id)
        status = approval.status_at(self.clock())
        if status is not ApprovalStatus.PENDING:
            raise decided(status)
        ending = Ending(scope.store, approval, decision.reason, self.clock, record)
        if decision.decision == "deny":
            await ending.deny()
        else:
            if call is not None:
                check_seen(scope.store, approval, call, decision.seen)
            await self._approve(scope, approval, call, ending)
        return ApprovalView.of(ending.ended, self.clock())

    async def _approve(self, scope: Scope, approval: Approval, call: StoredCall | None, ending: Ending) -> None:
        try:
            error = await self._run(scope, approval, call, ending)
        except ApprovalDecided:
            raise await ending.refusal() from None
        if error is not None:
            await ending.fail(error)

    async def _run(self, scope: Scope, approval: Approval, call: StoredCall | None, ending: Ending) -> Mapping[str, Json] | None:
        """Run the call. Return the error of a call that failed."""
        try:
            if call is None:
                raise ToolError("The stored call is gone, so it cannot run. Let the agent make it again.")
            agent = self.agents().get(approval.agent)
            if approval.tool not in agent.tools:
                raise ToolNotFound(f"The agent '{agent.name}' no longer has the tool '{approval.tool}'.")
        except (ToolError, AgentNotFound, ToolNotFound) as error:
            return error_result(error).error
        work = scope.for_agent(approval.agent, approval.session, kind=agent.kind)
        answer = await self.toolbox().execute_approved(work, approval.tool, call, ending, grants=agent.grants)
        return answer.error if answer.failed else None
