"""Chats: streamed turns as the room above runs them: open, claim, run, end the stream with the turn."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from spass.agents.driver import ShortenHistory
from spass.calls.scope import Scope
from spass.core.errors import SpassError, StorageUnavailable
from spass.core.events import Event, TurnStarted
from spass.core.ids import AgentName, RequestId, SessionId, UserId, new_id
from spass.core.messages import Message
from spass.core.run_result import AgentRun, RunResult
from spass.core.time import Clock
from spass.journal.head import StreamClaim, StreamHead, StreamState, claim, read_head, stream_digest
from spass.sessions.hold import TurnRequest
from spass.sessions.service import Sessions
from spass.store import keys
from spass.store.table import ConditionFailed
from spass.store.writes import Equals, Update, Write
from tests.simulated.scripted_turns import LoadHistory, Respond
from tests.unit.sessions.conftest import ScriptedAgent, answer_events
from tests.unit.sessions.turns import ScriptedTurn, start_turn

AGENT = AgentName("librarian")


async def say_yes(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    for event in answer_events("yes"):
        yield event


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream, which joins the commit of its turn."""

    claim: StreamClaim

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        return [self.claim.ending(StreamState.DONE)]


@dataclass(slots=True)
class Chats:
    """The chats of one user with one agent, whose model has a window of ``window`` tokens. ``now`` is the time of the claims,
    unless there is a ``clock``.

    ``histories`` are the messages that each run of the agent received, and ``sessions_of_runs`` the session of its scope.
    """

    sessions: Sessions
    scope: Scope
    now: float
    window: int = 250
    clock: Clock | None = None
    histories: list[list[Message]] = field(default_factory=list)
    sessions_of_runs: list[SessionId | None] = field(default_factory=list)

    @property
    def user(self) -> UserId:
        return self.scope.caller.require_user()

    async def claim(self, message_id: str, session: SessionId) -> StreamClaim:
        """Claim the next attempt of a stream. Assert that it is free."""
        claimed = await self._claim(message_id, session)
        assert isinstance(claimed, StreamClaim)
        return claimed

    async def start(
        self,
        message_id: str,
        wanted: str | None = None,
        entries: Sequence[Message] = (),
        agent: ScriptedAgent = say_yes,
        message: str = "hello",
    ) -> ScriptedTurn | StreamHead:
        """Start a turn, or return the head of the stream that runs or is done.

        Raises:
            SpassError: the turn was refused; the claim is undone.
        """
        opening = await self.sessions.open(self.scope, AGENT, wanted, entries)
        claimed = await self._claim(message_id, opening.session)
        if isinstance(claimed, StreamHead):
            return claimed
        run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
        scope = self.scope.for_agent(AGENT, claimed.head.session)
        request = TurnRequest(
            claimed.head.session, self.user, message, run, self.window, stream=claimed, message_id=message_id, opening=opening
        )
        turn = start_turn(self.sessions, scope, request, self._responder(scope, agent), [StreamEnd(claimed)])
        assert await turn.run.begin() is None
        return turn

    async def send(
        self,
        message_id: str,
        wanted: str | None = None,
        entries: Sequence[Message] = (),
        agent: ScriptedAgent = say_yes,
        message: str = "hello",
    ) -> RunResult:
        """Run a turn and return its outcome. Assert that no attempt of its stream runs or is done.

        Raises:
            SpassError: the turn was refused, or it failed and so did its stream.
        """
        turn = await self.start(message_id, wanted, entries, agent, message)
        assert isinstance(turn, ScriptedTurn)
        try:
            return (await turn.answer()).outcome
        except SpassError:
            await self._end_failed(message_id, turn)
            raise

    async def head(self, message_id: str) -> StreamHead | None:
        return await read_head(self.scope.store, stream_digest(self.user, AGENT, message_id))

    async def texts(self, session: SessionId | None) -> list[str]:
        """Return the texts of a session. Assert that its messages are numbered without gaps."""
        assert session is not None
        page = await self.sessions.history(self.scope, AGENT, session, None, 1000)
        assert [message.seq for message in page.messages] == list(range(1, len(page.messages) + 1))
        return [message.content for message in page.messages]

    async def list_sessions(self) -> list[SessionId]:
        return [session.id for session in (await self.sessions.page(self.scope, AGENT, None, 100)).sessions]

    async def _claim(self, message_id: str, session: SessionId) -> StreamClaim | StreamHead:
        digest = stream_digest(self.user, AGENT, message_id)
        return await claim(
            self.scope.store, digest, "body", session, new_id("turn"), self.clock() if self.clock is not None else self.now
        )

    async def _end_failed(self, message_id: str, turn: ScriptedTurn) -> None:
        key = keys.stream_head(self.scope.store.tenant, stream_digest(self.user, AGENT, message_id))
        is_running = Equals("owner", turn.id) & Equals("state", StreamState.RUNNING)
        with suppress(ConditionFailed, StorageUnavailable):
            await self.scope.store.table.write(Update(key, set={"state": StreamState.FAILED}, when=is_running))

    def _responder(self, scope: Scope, agent: ScriptedAgent) -> Respond:
        async def respond(_: str, load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
            yield TurnStarted()
            self.sessions_of_runs.append(scope.session)
            history = await load()
            self.histories.append(list(history))
            async with aclosing(agent(history, shorten)) as events:
                async for event in events:
                    if event != TurnStarted():
                        yield event

        return respond
