"""End an approval: one conditional write, which joins the transaction of the change that the approval allows."""

from collections.abc import Mapping, Sequence

from spass.approvals.record import Approval, ApprovalStatus, encode_end
from spass.approvals.responses import ApprovalView
from spass.approvals.store import read_approval
from spass.core.errors import ApprovalDecided, ApprovalNotFound, SpassError
from spass.core.messages import Json
from spass.core.time import Clock
from spass.store import keys
from spass.store.idempotency import Completion, claim_lost
from spass.store.swap import commit
from spass.store.tenant_store import TenantStore
from spass.store.writes import Equals, Update, Write


class Ending:
    """The end of ``approval`` by one decision. ``record`` stores the answer under the request's Idempotency-Key. ``ended`` is the
    approval after it, as the last writes store it.

    The writes take effect only while the approval is pending. So of several decisions one counts.
    """

    def __init__(
        self,
        store: TenantStore,
        approval: Approval,
        reason: str | None,
        clock: Clock,
        record: Completion[ApprovalView] | None = None,
    ) -> None:
        self.ended = approval
        self._approval = approval
        self._store = store
        self._reason = reason
        self._clock = clock
        self._record = record

    async def execute(self, result: Json) -> Sequence[Write]:
        """Return the writes that end the approval as executed with ``result``, for the transaction of the change."""
        return await self._writes(ApprovalStatus.EXECUTED, result=result)

    async def fail(self, error: Mapping[str, Json]) -> None:
        """End the approval as failed. Errors are those of ``deny``."""
        await self._commit(ApprovalStatus.FAILED, error)

    async def deny(self) -> None:
        """End the approval as denied.

        Raises:
            ApprovalDecided, ApprovalNotFound, LeaseLost: what ``refusal`` returns; nothing was changed.
            StorageUnavailable: the table does not answer; the approval says whether this decision counts.
        """
        await self._commit(ApprovalStatus.DENIED)

    async def refusal(self) -> SpassError:
        """Return the error of a decision whose writes had a condition that failed: the approval was decided or deleted, or
        another request has the claim."""
        try:
            latest = await read_approval(self._store, self._approval.user, self._approval.id)
        except ApprovalNotFound as error:
            return error
        return claim_lost() if latest.status is ApprovalStatus.PENDING else decided(latest.status)

    async def _commit(self, status: ApprovalStatus, error: Mapping[str, Json] | None = None) -> None:
        if await commit(self._store, await self._writes(status, error=error)):
            raise await self.refusal()

    async def _writes(
        self, status: ApprovalStatus, *, result: Json = None, error: Mapping[str, Json] | None = None
    ) -> Sequence[Write]:
        self.ended = ended = self._approval.after(status, self._reason, self._clock(), result=result, error=error)
        key = keys.approval(self._store.tenant, ended.user, ended.id)
        is_pending = Equals("status", ApprovalStatus.PENDING.value)
        end = Update(key, set=encode_end(ended), remove=("effect",), when=is_pending)
        if self._record is None:
            return [end]
        return [end, *await self._record.writes(ApprovalView.of(ended, self._clock()))]


def decided(status: ApprovalStatus) -> ApprovalDecided:
    """Return the error of a decision about an approval that has ended with ``status``."""
    return ApprovalDecided(
        f"This approval can no longer be decided: it is {status.value}. GET it to see what came of it.",
        details={"status": status.value},
    )
