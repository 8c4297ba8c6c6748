"""Remove the objects of a folder that nothing refers to, because their writer died, or lost a race."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from spass.core.time import Deadline
from spass.store.objects import ObjectSummary
from spass.store.tenant_store import TenantStore


async def remove_orphans(
    store: TenantStore,
    folder: str,
    is_due: Callable[[ObjectSummary], bool],
    choose: Callable[[str, Sequence[ObjectSummary]], Awaitable[Sequence[str]]],
    deadline: Deadline,
    guard: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext(),
) -> int:
    """Delete the objects below ``folder`` that ``choose`` returns, and return their number. Stop at the deadline; the next sweep
    continues. ``choose`` gets the name of a folder directly below, and those of its objects that ``is_due``. ``guard`` surrounds
    the work on one such folder.

    Raises:
        StorageUnavailable: the table or the bucket does not answer. What was removed so far stays removed.
    """
    removed = 0
    async for name, objects in store.objects.list_folders(folder):
        if not deadline.remaining():
            break
        async with guard(name):
            if due := [one for one in objects if is_due(one)]:
                orphans = await choose(name, due)
                await store.objects.delete(orphans)
                removed += len(orphans)
    return removed
