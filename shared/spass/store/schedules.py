"""The entries that send ticks to the queue of runs at set times."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """An entry: at the times of ``expression`` in ``timezone``, the scheduler sends ``body`` to the queue of runs. An entry that
    fires ``once`` is deleted when it has fired."""

    name: str
    expression: str
    timezone: str
    body: str
    once: bool


class Schedules(Protocol):
    """The entries of the deployment. The gateway's table says which ones there should be.

    Raises:
        StorageUnavailable: the deployment has no schedules, or the scheduler does not answer; whether a write took effect is
            unknown.
    """

    async def put(self, entry: ScheduleEntry) -> None:
        """Create the entry, or replace the one with its name. Raise ``InternalError`` if the scheduler refuses the entry."""

    async def delete(self, name: str) -> None:
        """Delete the entry, if there is one."""

    async def get(self, name: str) -> ScheduleEntry | None:
        """Return the entry, or None if there is none. An entry that does not send to the queue of runs has an empty body."""

    async def names(self) -> list[str]:
        """Return the names of all entries."""
