"""Make every call to a service of AWS here. A test can make any of them fail (``spass.testing.faults``).

In production no plan is set, and this costs one read of a context variable per call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from spass.core.errors import StorageUnavailable
from spass.store.shielded import run_shielded

T = TypeVar("T")

PendingCall: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
"""A call that has not begun."""

_MAX_THREADS: Final = 40
_READS: Final = frozenset(
    {"GetItem", "Query", "GetObject", "HeadObject", "ListObjectsV2", "Invoke", "GetSchedule", "ListSchedules", "AssumeRole"}
)


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """A call to a service. boto3's method, or the method of ``TableClient``, gets the ``parameters``."""

    service: str
    operation: str
    parameters: Mapping[str, object]

    @property
    def is_read(self) -> bool:
        """Return True if the call changes nothing. A cancelled caller does not wait for a read."""
        return self.operation in _READS


class CallPlan(Protocol):
    """A plan of which AWS calls fail, and how."""

    @property
    def in_threads(self) -> bool:
        """Return False to run calls that block on the event loop: virtual time does not wait for a thread."""
        ...

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        """Make ``call`` with ``run`` and return its result, or raise the error that the caller must handle."""


CALL_PLAN: Final[ContextVar[CallPlan | None]] = ContextVar("spass_call_plan", default=None)
"""The plan of all AWS calls of this context, including tasks started in it."""

_threads: Final = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="aws")  # starts its threads on demand


async def invoke(call: ServiceCall, run: PendingCall[T]) -> T:
    """Make one AWS call.

    A cancelled caller waits for the end of a write: what it does next must not precede the write's effect. It leaves a read at
    once, so that a bucket that hangs does not delay the stop of a turn.
    """
    plan = CALL_PLAN.get()
    if plan is not None:
        return await plan.around(call, run)
    return await (run() if call.is_read else run_shielded(run()))


async def invoke_blocking(call: ServiceCall, run: Callable[[], T]) -> T:
    """Make one AWS call that blocks, in a worker thread. A cancelled caller waits as in ``invoke``."""

    async def run_in_thread() -> T:
        plan = CALL_PLAN.get()
        if plan is not None and not plan.in_threads:
            return run()
        return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, run)

    return await invoke(call, run_in_thread)


async def retry_once(call: Callable[[], Awaitable[T]]) -> T:
    """Retry once when the outcome is unknown. The call must be idempotent.

    Raises:
        StorageUnavailable: both calls failed; whether either took effect is unknown.
    """
    try:
        return await call()
    except StorageUnavailable:
        return await call()
