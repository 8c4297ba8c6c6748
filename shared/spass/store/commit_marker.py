"""Commit a transaction once, and find out whether it took effect, even if its reply was lost and other writers followed.

If the retry of a conditional write fails, its writer does not know why: its first attempt may have taken effect, and others may
have changed the item since. So the transaction also puts a marker, a small item that no other writer changes. The marker
exists if and only if the transaction took effect.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from spass.core.errors import StorageUnavailable, storage_timeout
from spass.core.ids import random_suffix
from spass.core.time import now_s
from spass.store import keys
from spass.store.attributes import Item
from spass.store.table import TTL, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Write

_SENDS: Final = 2
_KEEP_SECONDS: Final = 3600  # longer than any process that may still read the marker


async def commit(store: TenantStore, writes: Sequence[Write]) -> Mapping[int, Item | None]:
    """Do all of ``writes`` or none, once. Return the position of each write whose condition failed, with its stored item. The
    result is empty if the writes took effect.

    Raises:
        StorageUnavailable: the table does not answer; whether the writes took effect is unknown.
    """
    name = random_suffix()
    key = keys.commit_marker(store.tenant, name)
    writes_with_marker = [*writes, Put(key, {TTL: now_s() + _KEEP_SECONDS}, ITEM_ABSENT)]
    for _ in range(_SENDS):
        try:
            await store.table.transact(writes_with_marker, token=name)
        except TransactionFailed as failure:
            # boto3 retries too. So this may be the failure of a retry whose first attempt took effect.
            took_effect = len(writes) in failure.failures
            return {} if took_effect else failure.failures
        except StorageUnavailable:
            if await store.table.get(key) is not None:
                return {}
        else:
            return {}
    raise storage_timeout()
