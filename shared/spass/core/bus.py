"""The event bus: it passes events of agent turns, model calls and tool calls to telemetry and to the operator's own code.

Every START event is followed by exactly one END event, also if the work fails or is cancelled. No event contains text, arguments,
results, user ids, tokens or URLs. The recorder of calls publishes the events of model and tool calls; the driver publishes those
of turns.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from spass.core.bus_events import (
        AgentTurnEnd,
        AgentTurnStart,
        BusEvent,
        InferenceEnd,
        InferenceStart,
        ToolCallEnd,
        ToolCallStart,
    )

_log: Final = logging.getLogger(__name__)


E = TypeVar("E", bound="BusEvent")


class EventType(Generic[E]):
    """A type of events to subscribe to. ``name`` is its name in lines of the log. The constants below are all types."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name.upper()


AGENT_TURN_START: Final["EventType[AgentTurnStart]"] = EventType("agent_turn_start")
AGENT_TURN_END: Final["EventType[AgentTurnEnd]"] = EventType("agent_turn_end")
TOOL_CALL_START: Final["EventType[ToolCallStart]"] = EventType("tool_call_start")
TOOL_CALL_END: Final["EventType[ToolCallEnd]"] = EventType("tool_call_end")
INFERENCE_START: Final["EventType[InferenceStart]"] = EventType("inference_start")
INFERENCE_END: Final["EventType[InferenceEnd]"] = EventType("inference_end")

EVENT_TYPES: Final[tuple[EventType[Any], ...]] = (
    AGENT_TURN_START,
    AGENT_TURN_END,
    TOOL_CALL_START,
    TOOL_CALL_END,
    INFERENCE_START,
    INFERENCE_END,
)


ReportError = Callable[[EventType[Any], BaseException], None]


def _log_error(event_type: EventType[Any], error: BaseException) -> None:
    _log.error("A subscriber of %s failed.", event_type.name, exc_info=error)


class EventBus:
    """Pass each event to the subscribers of its type, in the order of subscription, before ``publish`` returns.

    ``report_error`` is called with each exception that a subscriber raises; by default it is logged. A subscriber must not block:
    it runs on the event loop of the work that it observes.
    """

    def __init__(self, report_error: ReportError = _log_error) -> None:
        self._report_error = report_error
        self._lock = threading.Lock()
        # Each change replaces a tuple, so that it does not disturb a ``publish`` that is iterating over the old one.
        self._subscriptions: dict[EventType[Any], tuple[partial[object], ...]] = dict.fromkeys(EVENT_TYPES, ())

    def subscribe(self, event_type: EventType[E], receive: Callable[[E], object]) -> Callable[[], None]:
        """Call ``receive`` with each later event of ``event_type``. Return a function that ends this subscription: an event
        that is being passed on may still arrive. Raise ``TypeError`` for another type than those in ``EVENT_TYPES``."""
        if event_type not in EVENT_TYPES:
            names = ", ".join(map(repr, EVENT_TYPES))
            raise TypeError(f"{event_type!r} is not a type of events. Use one of these constants of spass.core.bus: {names}.")
        subscription = partial(receive)  # an object of its own: the same function may be subscribed several times
        with self._lock:
            self._subscriptions[event_type] += (subscription,)

        def unsubscribe() -> None:
            with self._lock:
                remaining = tuple(other for other in self._subscriptions[event_type] if other is not subscription)
                self._subscriptions[event_type] = remaining

        return unsubscribe

    def publish(self, event_type: EventType[E], build: Callable[[], E]) -> None:
        """Pass the event that ``build`` returns to the subscribers. ``build`` is not called if there are none. An exception in a
        subscriber is reported and has no other effect."""
        subscriptions = self._subscriptions[event_type]
        if not subscriptions:
            return
        event = build()
        for subscription in subscriptions:
            try:
                subscription(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 (also CancelledError: no subscriber may change the work it observes)
                with suppress(Exception):
                    self._report_error(event_type, error)


EMPTY_BUS: Final = EventBus()
"""The bus of work that nobody observes. Do not subscribe to it."""
