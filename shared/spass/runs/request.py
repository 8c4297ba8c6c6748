"""What a request asks a run for: the message, the session, the name of its stream, and its format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from spass.agents.engine import NOTHING_GIVEN
from spass.agents.kinds.base import AgentContext
from spass.agents.render.frames import EVENTS, RunFormat
from spass.core.ids import AgentName, SessionId, WorkspaceId, random_suffix
from spass.core.messages import Message
from spass.memory.operator import Operator
from spass.store.idempotency import IdempotentRequest

if TYPE_CHECKING:  # most runs are not those of managed agents
    from spass.managed.execution import Execution
    from spass.managed.records import MailboxMessage


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The name of a stream that others can follow, and the hash of its request's body. ``stream_namespace`` takes the place of
    the agent's name in the stream's identity."""

    message_id: str
    body_hash: str = ""
    stream_namespace: AgentName | None = None

    @classmethod
    def of(cls, request: IdempotentRequest | None) -> Self:
        """Return the identity of a stream whose client names none: its Idempotency-Key names it, or the name is random."""
        return cls(request.digest, request.body_hash) if request is not None else cls(random_suffix())


@dataclass(frozen=True, slots=True)
class ChatSession:
    """The session of a chat. ``wanted`` is the id of a session, the client's own name for one, or None for a new one. A new
    session begins with the messages ``earlier``. An archived one continues as its newest successor."""

    wanted: str | None = None
    earlier: tuple[Message, ...] = ()
    title: str | None = None


@dataclass(frozen=True, slots=True)
class ManagedRun:
    """A run of a managed agent: its ``execution``, which a failure ends, and the messages that it has ``delivered`` when it
    succeeds."""

    execution: "Execution"
    delivered: "Sequence[MailboxMessage]"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request that an agent answers ``message``. ``given`` is what the caller adds to the context; it is not stored.

    ``session`` is that of a turn: an existing one by its id, that of a chat, or that of an operator, which its runs continue.
    Without one, nothing is recorded. ``workspace`` is that which the client names for the session, if it names one.

    A streamed turn can be followed, resumed and stopped as ``stream``, whose default is ``StreamIdentity.of``. ``form`` is its
    format. ``managed`` is set if a managed agent runs.
    """

    message: str
    session: SessionId | ChatSession | Operator | None = None
    given: AgentContext = NOTHING_GIVEN
    workspace: WorkspaceId | None = None
    idempotency: IdempotentRequest | None = None
    stream: StreamIdentity | None = None
    form: RunFormat = EVENTS
    managed: ManagedRun | None = None

    @property
    def operator(self) -> Operator | None:
        return self.session if isinstance(self.session, Operator) else None
