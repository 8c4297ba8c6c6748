"""The event bus: the events of agent turns, model calls and tool calls, for telemetry and for the operator's own code.

Every START event is followed by exactly one END event, also if the work fails or is cancelled. No event contains text, arguments,
results, user ids, tokens or URLs. The recorder of calls publishes the events of model and tool calls; the driver publishes those
of turns.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

from spass.core.ids import AgentName, RequestId, SessionId, TenantId
from spass.core.messages import FinishReason
from spass.core.time import Timestamp

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusEvent:
    """The fields that all events have.

    ``request_id`` is the client's request. ``parent_request_id`` is the call for which the work is done (its ``call_id``), or the
    client's request. ``agent`` is the name of the agent and ``kind`` the key of its kind; both are None outside an agent's work.
    """

    at: Timestamp
    tenant: TenantId
    request_id: RequestId
    parent_request_id: RequestId
    agent: AgentName | None
    kind: str | None
    session_id: SessionId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnStart(BusEvent):
    """An agent begins to answer an input of ``input_chars`` characters."""

    input_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnEnd(BusEvent):
    """An agent's turn ended: with ``finish_reason``, or with ``error``, the code of an error or ``cancelled``.

    ``turns`` counts the agent's own model calls. The tokens and the cost include calls made aside.
    """

    turns: int
    tool_calls: int
    finish_reason: FinishReason | None = None
    error: str | None = None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart(BusEvent):
    """A tool is called. ``tool`` is None if the model called a tool that does not exist."""

    call_id: RequestId
    tool: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEnd(BusEvent):
    """A call of a tool ended. ``status`` is ``ok``, ``cancelled`` or the code of an error; ``ok`` is True only for ``ok``."""

    call_id: RequestId
    tool: str | None
    ok: bool
    status: str
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStart(BusEvent):
    """A model is called, for a chat or for embeddings."""

    call_id: RequestId
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEnd(BusEvent):
    """A call of a model ended. ``status`` is ``ok``, ``cancelled`` or the code of an error. ``backend`` is the one that answered,
    after ``attempts`` requests. Tokens and cost are those of the audit record ``call_id``."""

    call_id: RequestId
    model: str
    backend: str | None
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    status: str
    duration_ms: int


E = TypeVar("E", bound=BusEvent)


@dataclass(frozen=True, slots=True, eq=False)
class EventType(Generic[E]):
    """A type of events to subscribe to. ``name`` is its name in lines of the log."""

    name: str
    event_class: type[E]


AGENT_TURN_START: Final = EventType("agent_turn_start", AgentTurnStart)
AGENT_TURN_END: Final = EventType("agent_turn_end", AgentTurnEnd)
TOOL_CALL_START: Final = EventType("tool_call_start", ToolCallStart)
TOOL_CALL_END: Final = EventType("tool_call_end", ToolCallEnd)
INFERENCE_START: Final = EventType("inference_start", InferenceStart)
INFERENCE_END: Final = EventType("inference_end", InferenceEnd)

EVENT_TYPES: Final[tuple[EventType[Any], ...]] = (
    AGENT_TURN_START,
    AGENT_TURN_END,
    TOOL_CALL_START,
    TOOL_CALL_END,
    INFERENCE_START,
    INFERENCE_END,
)


@dataclass(frozen=True, slots=True, eq=False)
class _Subscription:
    """One subscription of ``receive``. The same function may be subscribed several times."""

    receive: Callable[[Any], object]


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
        self._subscriptions: dict[EventType[Any], tuple[_Subscription, ...]] = dict.fromkeys(EVENT_TYPES, ())

    def subscribe(self, event_type: EventType[E], receive: Callable[[E], object]) -> Callable[[], None]:
        """Call ``receive`` with each later event of ``event_type``. Return a function that ends this subscription.

        A subscriber that is removed while an event is being passed on may still receive that event.

        Raises:
            TypeError: ``event_type`` is not one of ``EVENT_TYPES``.
        """
        if event_type not in EVENT_TYPES:
            names = ", ".join(known.name.upper() for known in EVENT_TYPES)
            raise TypeError(f"{event_type!r} is not a type of events. Use one of these constants of spass.core.bus: {names}.")
        subscription = _Subscription(receive)
        with self._lock:
            self._subscriptions[event_type] += (subscription,)

        def unsubscribe() -> None:
            with self._lock:
                remaining = tuple(other for other in self._subscriptions[event_type] if other is not subscription)
                self._subscriptions[event_type] = remaining

        return unsubscribe

    def publish(self, event_type: EventType[E], build: Callable[[], E]) -> None:
        """Pass the event that ``build`` returns to the subscribers. ``build`` is not called if there are none.

        An exception in a subscriber is reported and has no other effect.
        """
        subscriptions = self._subscriptions[event_type]
        if not subscriptions:
            return
        event = build()
        for subscription in subscriptions:
            try:
                subscription.receive(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 (also CancelledError: no subscriber may change the work it observes)
                with suppress(Exception):
                    self._report_error(event_type, error)


EMPTY_BUS: Final = EventBus()
"""The bus of work that nobody observes. Do not subscribe to it."""
