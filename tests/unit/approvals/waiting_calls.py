"""Approvals in a table and a bucket in memory, with a clock that the test sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spass.approvals.record import Approval, StoredCall
from spass.approvals.store import put_approval
from spass.core.ids import AgentName, ApprovalId, SessionId, TenantId, UserId
from spass.core.messages import Json
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.testing.aws import MemoryAws

ANA = UserId("ana")
TURN = "turn_1"
SESSION = SessionId("ses_" + "1" * 26)
EFFECT: Mapping[str, Json] = {"state": "abc"}


@dataclass
class WaitingCalls:
    """The approvals of one tenant. Each session is held by the turn ``TURN``."""

    aws: MemoryAws = field(default_factory=MemoryAws)
    now: float = 1_800_000_000.0

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(TenantId("demo"))

    async def put(
        self,
        *,
        user: UserId = ANA,
        session: SessionId = SESSION,
        arguments: Mapping[str, Json] | None = None,
        effect: Mapping[str, Json] = EFFECT,
        rich: Sequence[Json] = (),
        turn: str = TURN,
    ) -> Approval:
        """Store an approval of a call of ``rag_index_delete``, a second after the one before."""
        self.now += 1
        head = keys.session_head(self.store.tenant, session)
        await self.store.table.write(Put(head, {"hold": {"owner": TURN}}))
        call = StoredCall(arguments or {"index_id": "notes"}, effect)
        approval = Approval.new(
            user=user,
            tool="rag_index_delete",
            agent=AgentName("librarian"),
            session=session,
            message_id="m1",
            preview={"index_id": "notes"},
            rich=rich,
            arguments=call.arguments,
            now=self.now,
        )
        await put_approval(self.store, approval, call, turn)
        return approval

    def stored(self) -> Sequence[Mapping[str, object]]:
        """Return the items of approvals."""
        return [item for item in self.aws.table.items() if "#APR#" in str(item["pk"])]


def some_approval() -> ApprovalId:
    """Return the id of an approval that does not exist."""
    return ApprovalId("apr_" + "0" * 26)
