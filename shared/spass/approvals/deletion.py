"""Delete the approvals of a session, which the items in the session's partition name."""

from collections.abc import Sequence

from spass.approvals.record import call_object
from spass.core.ids import ApprovalId, UserId
from spass.core.tasks import run_concurrently
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Item


async def delete_approvals(store: TenantStore, user: UserId, items: Sequence[Item]) -> None:
    """Delete the approvals of ``user`` that ``items`` of a session name. A repetition does no harm.

    Raises:
        StorageUnavailable: the table or the bucket does not answer; some approvals may still exist.
    """
    named = [item for item in items if str(item["sk"]).startswith(keys.SESSION_APPROVAL_PREFIX)]
    if not named:
        return
    ids = {ApprovalId(str(item["sk"]).removeprefix(keys.SESSION_APPROVAL_PREFIX)): item for item in named}
    await run_concurrently([store.table.write(Delete(keys.approval(store.tenant, user, approval))) for approval in ids])
    if large := [call_object(approval) for approval, item in ids.items() if item["is_large"]]:
        await store.objects.delete(large)
