"""The agent kinds by name. A kind is a function that takes a context and a conversation and yields the events of one turn."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from spass.agents.kinds import orchestrator
from spass.agents.kinds.context import KindContext
from spass.core.events import Event
from spass.core.messages import Message

Kind: TypeAlias = Callable[[KindContext, Sequence[Message]], AsyncGenerator[Event, None]]

KINDS: Final[Mapping[str, Kind]] = {
    "orchestrator": orchestrator.run,
}
