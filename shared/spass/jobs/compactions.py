"""Handle the queue of compactions: each message starts the state machine on one job."""

from spass.core.jobs import Delivery, StartCompaction
from spass.core.time import Deadline
from spass.jobs.dispatch import NotHandled, Task
from spass.store.tenant_store import TenantStore


async def start_compaction(store: TenantStore, task: Task, _delivery: Delivery, _deadline: Deadline) -> bool:
    """Start the state machine on the compaction that ``task`` names.

    Raises:
        NotHandled: ``task`` is not a compaction.
        StorageUnavailable: the state machine does not answer; it may have started.
    """
    if not isinstance(task, StartCompaction):
        raise NotHandled("only compactions come over this queue")
    await store.jobs.start_compaction(task.id)
    return True
