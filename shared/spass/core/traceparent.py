"""The ``traceparent`` of W3C (https://www.w3.org/TR/trace-context/), and the trace of the work in progress.

Work has a trace only if the operator exports spans (``spass.observability``). Messages that ask for more work carry its
``traceparent``, so that one trace goes through the queues.
"""

from contextvars import ContextVar
from typing import Final, Protocol


class CurrentTrace(Protocol):
    """The trace of some work."""

    @property
    def traceparent(self) -> str:
        """Return what a message carries to continue this trace."""
        ...

    def join(self, traceparent: str | None, *, is_linked: bool = False) -> None:
        """Continue the trace of ``traceparent``, or link to it. A malformed one has no effect. Call this before ``traceparent``
        is read."""
        ...


CURRENT_TRACE: Final[ContextVar[CurrentTrace | None]] = ContextVar("spass_trace", default=None)


def current_traceparent() -> str | None:
    """Return what a message carries to continue the trace of the work in progress, or None if the work has no trace."""
    trace = CURRENT_TRACE.get()
    return trace.traceparent if trace is not None else None
