"""Record the events of a bus, and check that every START has one END and that they are nested properly."""

from typing import Any, TypeVar, cast

from spass.core.bus import EVENT_TYPES, EventBus, EventType
from spass.core.bus_events import BusEvent

E = TypeVar("E", bound=BusEvent)


class EventLog:
    """All events of ``bus`` in the order in which they were published."""

    def __init__(self, bus: EventBus) -> None:
        self.events: list[tuple[EventType[Any], BusEvent]] = []
        for event_type in EVENT_TYPES:
            self._subscribe(bus, event_type)

    def _subscribe(self, bus: EventBus, event_type: EventType[E]) -> None:
        bus.subscribe(event_type, lambda event: self.events.append((event_type, event)))

    @property
    def names(self) -> list[str]:
        """Return the names of the types of all events."""
        return [event_type.name for event_type, _ in self.events]

    def of(self, event_type: EventType[E]) -> list[E]:
        """Return the events of one type."""
        return [cast("E", event) for recorded_type, event in self.events if recorded_type is event_type]

    def check(self) -> None:
        """Check that each START has exactly one END after it, and that work ends before the work that it was done for.

        A call ends before the call that made it, and before the end of the turn that it belongs to.
        """
        open_work: dict[tuple[str, str], BusEvent] = {}
        for event_type, event in self.events:
            work, phase = event_type.name.rsplit("_", 1)
            key = (work, _own_id(event))
            if phase == "start":
                assert key not in open_work, f"{key} began twice"
                open_work[key] = event
            else:
                start = open_work.pop(key, None)
                assert start is not None, f"{key} ended, but it had not begun or had ended before"
                children = [other for other in open_work.values() if _is_part(other, event)]
                assert not children, f"{key} ended before its parts {children}"
        assert not open_work, f"without an END: {list(open_work.values())}"


def _own_id(event: BusEvent) -> str:
    """Return the id of a call, or of a turn: a request or a call makes at most one turn at a time."""
    return str(getattr(event, "call_id", event.parent_request_id))


def _is_part(other: BusEvent, of: BusEvent) -> bool:
    """Return whether the work of ``other`` is done for the work of ``of``."""
    return other is not of and other.parent_request_id == _own_id(of) and other.request_id == of.request_id
