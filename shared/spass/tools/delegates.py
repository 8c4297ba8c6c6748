"""The protocol by which the tool ``delegate`` runs another agent. A room above this one implements it."""

from dataclasses import dataclass
from typing import Protocol

from spass.calls.scope import Scope
from spass.core.ids import ApprovalId
from spass.core.messages import FinishReason, Json
from spass.tools.grants import Grants


@dataclass(frozen=True, slots=True)
class Delegation:
    """The result of a delegate. ``versions`` are the numbers of the workspace versions that its calls committed, in order.

    ``approvals`` are the results of its calls that wait for a person, as its model received them, and ``waiting`` their ids.
    """

    answer: str
    finish_reason: FinishReason
    versions: tuple[int, ...] = ()
    approvals: tuple[Json, ...] = ()
    waiting: tuple[ApprovalId, ...] = ()


class Delegates(Protocol):
    """Run agents within calls of other agents."""

    async def run(self, scope: Scope, grants: Grants, agent: str, task: str) -> Delegation:
        """Let ``agent`` do ``task`` within the call of ``scope`` by an agent with ``grants``. Return what it did. Its calls are
        forwarded.

        Raises:
            ToolError, SpassError: the agent cannot run for this caller, or it failed.
        """
        ...
