"""Chats in a simulated world: streams that are posted, followed and stopped, and blocking turns. Each request has a process."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final

from spass.agents.driver import ShortenHistory
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import SessionArchived, SpassError
from spass.core.events import Event, InferenceStarted, TurnStarted
from spass.core.ids import RequestId, SessionId, UserId, new_id
from spass.core.messages import Json, Message
from spass.core.run_result import RunResult
from spass.journal.follower import FollowedStream
from spass.journal.frames import EventId, Frame
from spass.runs.chat_body import ChatBody
from spass.runs.following import follow_stream, stop_turn
from spass.runs.run import Run, RunRequest
from spass.runs.service import Runs
from spass.sessions.hold import messages_path
from spass.sessions.service import Sessions
from spass.store.idempotency import IdempotentRequest
from spass.store.writes import Item
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.faults import Crash, inject
from tests.simulated.chat_log import Done, Ledger, StreamReading, as_words, turn_words
from tests.simulated.gateway import AGENT, TENANT, USER, Gateway
from tests.simulated.schedule import NO_FAULTS, Process
from tests.simulated.scripted_turns import ScriptedEngine, answer_in_pieces, render_error
from tests.stream_grammar import SentEvent
from tests.unit.idempotent_requests import idempotent_request

MODEL: Final = "talker"
SPEC: Final = AgentSpec(name=AGENT, model=MODEL)
ENTRIES: Final[Sequence[Mapping[str, Json]]] = (
    {"role": "user", "content": "earlier question"},
    {"role": "tool", "content": "17 degrees", "tool_call_id": "call_9"},
    {"role": "assistant", "content": "earlier answer"},
)
"""The entries that every chat brings. Only a new session stores them."""
IMPORTED: Final = (
    ("user", "earlier question"),
    ("user", "Result of the call call_9: 17 degrees"),
    ("assistant", "earlier answer"),
)
_MAX_REDIRECTS: Final = 50


class Kind(StrEnum):
    """How a message is sent: as a chat, as a stream to an existing session, or for a blocking answer."""

    CHAT = "chat"
    STREAMED = "streamed"
    BLOCKING = "blocking"


@dataclass(frozen=True, slots=True)
class Post:
    """A message that clients send, perhaps several times. ``key`` is the ``message_id`` of a chat or an Idempotency-Key.
    ``wanted`` is the session as the client names it; only a chat may have None or a name."""

    kind: Kind
    key: str
    question: str
    wanted: str | None

    @property
    def session(self) -> SessionId:
        return SessionId(self.wanted or "")

    @property
    def message_id(self) -> str:
        return self.message_id_in(self.session)

    def message_id_in(self, session: SessionId) -> str:
        """Return the name of the stream to ``session``. Without redirects that is the one that the client names."""
        return self.key if self.kind is Kind.CHAT else self._idempotency(session).digest

    def request(self, session: SessionId) -> RunRequest:
        """Return the request of a stream, or of a blocking turn, to ``session``."""
        if self.kind is Kind.CHAT:
            messages = [*ENTRIES, {"role": "user", "content": self.question}]
            body: dict[str, Any] = {"message_id": self.key, "messages": messages}
            body |= {"session_id": self.wanted} if self.wanted is not None else {}
            return ChatBody.model_validate(body).request(body)
        return RunRequest(self.question, session, idempotency=self._idempotency(session))

    def _idempotency(self, session: SessionId) -> IdempotentRequest:
        return idempotent_request(self.key, f"{self.question} {self.kind}", messages_path(AGENT, session))


@cache
def _config(window: int) -> GatewayConfig:
    content = {
        "tenants": [{"id": TENANT}],
        "models": [{"name": MODEL, "context_window": window}],
        "defaults": {"compact_keep_last_n": 3},
    }
    return GatewayConfig.model_validate(content)


@dataclass(slots=True)
class ChatGateway(Gateway):
    """A gateway with chats. ``ledger`` has what was stored, ``readings`` and ``dones`` what clients saw. ``live`` are the streams
    whose turns ran here, and ``questions`` the questions that were sent with each ``message_id``."""

    ledger: Ledger = field(default_factory=Ledger)
    readings: list[StreamReading] = field(default_factory=list)
    dones: dict[str, Done] = field(default_factory=dict)
    live: list[Run] = field(default_factory=list)
    questions: dict[str, set[str]] = field(default_factory=dict)
    runs: Runs = field(init=False)

    def __post_init__(self) -> None:
        super(ChatGateway, self).__post_init__()
        self.restart()

    def restart(self) -> None:
        """Empty the caches, as a new process has them."""
        clock, config = self.schedule.now, _config(self.window)
        self.sessions = Sessions(Cascade(config), lambda: self.summaries, clock=clock)
        self.runs = Runs(ScriptedEngine(self._respond), lambda: self.sessions, config, clock)

    def _watch(self, before: Item | None, after: Item | None) -> None:
        self.ledger.watch(before, after, self.schedule.now())

    def scope_of(self, user: UserId = USER) -> Scope:
        """Return the scope of a new request by ``user``."""
        scope = self.scope()
        caller = replace(scope.caller, user=user, request_id=RequestId(new_id("req")))
        return replace(scope, caller=caller).streaming

    async def post(self, post: Post, *, reads: int | None = None, user: UserId = USER) -> Done | str:
        """Send ``post`` once. Return the recorded turn, or the code of the refusal or failure, or why the outcome is unknown.
        With ``reads``, leave after that many events."""
        process, session = self.schedule.process(without_faults=self.schedule.fault_rates is NO_FAULTS), post.session
        try:
            with inject(process):
                for _ in range(_MAX_REDIRECTS):
                    try:
                        return await self._post_once(post, session, process, reads, user)
                    except SessionArchived as archived:
                        assert post.kind is not Kind.CHAT, "a chat continues in the newest session"
                        session = SessionId(str(archived.details["successor_session_id"]))
        except SpassError as refused:
            return refused.code
        except Crash:
            return "crash"
        raise AssertionError(f"more than {_MAX_REDIRECTS} redirects")

    async def _post_once(self, post: Post, session: SessionId, process: Process, reads: int | None, user: UserId) -> Done | str:
        scope = self.scope_of(user)
        if post.kind is Kind.BLOCKING:
            return await self._post_blocking(post, session, scope)
        message_id = post.message_id_in(session)
        self.questions.setdefault(message_id, set()).add(post.question)
        stream = await self.runs.stream(scope, SPEC, post.request(session), render_error)
        if isinstance(stream, RunResult):
            return self._record(post, stream)
        if isinstance(stream, Run):
            self.live.append(stream)
            reading = await self._read_live(stream, message_id, process, reads)
        else:
            reading = await self._read_followed(stream, message_id, None, reads)
        done = reading.done(post.question)
        if done is not None:
            return self._record_done(done)
        return reading.failure or "cut"

    async def _post_blocking(self, post: Post, session: SessionId, scope: Scope) -> Done:
        return self._record(post, (await self.runs.answer(scope, SPEC, post.request(session))).outcome)

    def _record(self, post: Post, outcome: RunResult) -> Done:
        assert outcome.message_id is not None
        assert outcome.session_id is not None
        assert outcome.seq is not None
        words = turn_words([tool.result for tool in outcome.tools], outcome.content)
        return self._record_done(
            Done(outcome.message_id, outcome.session_id, outcome.seq, outcome.finish_reason, post.question, words)
        )

    def _record_done(self, done: Done) -> Done:
        earlier = self.dones.get(done.answer_id)
        self.dones[done.answer_id] = earlier.merge(done) if earlier is not None else done
        return done

    async def follow(self, message_id: str, after: EventId | None, reads: int | None = None, user: UserId = USER) -> str:
        """Follow a stream until it ends. Return what came of it."""
        with inject(self.schedule.process(without_faults=self.schedule.fault_rates is NO_FAULTS)):
            try:
                stream = await follow_stream(self.scope_of(user), AGENT, message_id, after)
                if stream is None:
                    return "nothing more"
                reading = await self._read_followed(stream, message_id, after, reads)
            except SpassError as error:
                return error.code
            except Crash:
                return "crash"
        if done := reading.done(None):
            self._record_done(done)
        return reading.failure or ("ended" if reading.has_ended else "cut")

    async def stop(self, message_id: str, user: UserId = USER) -> str:
        """Stop a stream. Return its status."""
        with inject(self.schedule.process()):
            try:
                return (await stop_turn(self.scope_of(user), AGENT, message_id)).status
            except SpassError as error:
                return error.code
            except Crash:
                return "crash"

    async def delete(self, session: SessionId) -> str:
        with inject(self.schedule.process(without_faults=self.schedule.fault_rates is NO_FAULTS)):
            try:
                await self.sessions.delete(self.scope(), AGENT, session)
            except SpassError as error:
                return error.code
            except Crash:
                return "crash"
        return "deleted"

    async def words_of(self, session: SessionId) -> list[tuple[str, str]]:
        """Return the history of a session as its user reads it."""
        page = await self.sessions.history(self.scope(), AGENT, session, None, 1000)
        return [(message.role, as_words(message.role, message.content)) for message in page.messages]

    async def running_streams(self) -> list[str]:
        """Return the ids of the streams that run in existing sessions, as a client that reloads finds them."""
        views = [
            self.sessions.view(await self.sessions.get(self.scope(), AGENT, session))
            for session in sorted(self.ledger.sessions.keys() - self.ledger.deleted)
        ]
        return [view.active_turn.message_id for view in views if view.active_turn is not None]

    def is_recorded(self, message_id: str) -> bool:
        """Return whether a turn of the stream was ever recorded."""
        turns = (*self.ledger.turns.values(), *self.ledger.former)
        return bool(self.questions.get(message_id, set()) & {turn.question for turn in turns})

    async def settle(self) -> None:
        """Wait until the streams of all processes have ended, those of crashed ones included."""
        for live in self.live:
            await live.wait()

    async def _read_live(self, live: Run, message_id: str, process: Process, reads: int | None) -> StreamReading:
        assert live.log is not None
        items: list[tuple[EventId | None, Frame]] = []
        while await live.log.wait_for_event(len(items)) and len(items) < len(live.log.events) and not process.crashed:
            if len(items) == reads:
                break
            items.append((live.log.event_id(len(items)), live.log.events[len(items)]))
        return self._log_reading(message_id, None, items, None, left=len(items) == reads)

    async def _read_followed(
        self, stream: FollowedStream, message_id: str, after: EventId | None, reads: int | None
    ) -> StreamReading:
        items, error = list[tuple[EventId | None, Frame]](), None
        try:
            while len(items) != reads and await stream.wait_for_event(len(items)):
                if len(items) == len(stream.events):
                    await stream.result()
                    break
                items.append(stream.events[len(items)])
        except SpassError as failure:
            error = failure.code
        finally:
            stream.cancel()
        return self._log_reading(message_id, after, items, error, left=len(items) == reads)

    def _log_reading(
        self,
        message_id: str,
        after: EventId | None,
        items: Sequence[tuple[EventId | None, Frame]],
        error: str | None,
        *,
        left: bool,
    ) -> StreamReading:
        sent = [SentEvent(json.loads(frame.data), event_id, frame.event) for event_id, frame in items]
        reading = StreamReading(message_id, after, sent, error, left)
        self.readings.append(reading)
        return reading

    async def _respond(
        self, question: str, load: Callable[[], Awaitable[Sequence[Message]]], shorten_history: ShortenHistory | None
    ) -> AsyncGenerator[Event, None]:
        """Act as the agent: answer in pieces, and sometimes call a tool first, take long, or fail."""
        yield TurnStarted()
        await load()
        yield InferenceStarted(1)
        if self.schedule.rng.random() < 0.02 and shorten_history is not None:
            await shorten_history()

        def pieces() -> list[str]:
            self.answers += 1
            return [f"answer {self.answers}", " to ", question]

        async for event in answer_in_pieces(self.schedule, pieces, fails=0.03):
            yield event
