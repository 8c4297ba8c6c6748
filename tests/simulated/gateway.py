"""Simulated sessions: real turns and compactions, a scripted agent, scripted summaries, and clients that retry."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from spass.agents.driver import ShortenHistory
from spass.calls.scope import Scope
from spass.core.errors import ContextLengthExceeded, SessionArchived, SpassError, StorageUnavailable, SummaryFailed, UpstreamError
from spass.core.events import Event, Failed, InferenceStarted, TurnStarted
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId
from spass.core.messages import Message
from spass.core.run_result import AgentRun, RunResult
from spass.sessions.compaction.plan import Summary, read_summary
from spass.sessions.compaction.summary import Summarizer
from spass.sessions.hold import TurnRequest, messages_path
from spass.sessions.record import load_turns
from spass.sessions.service import Sessions
from spass.sessions.session import CreateSession, Session, decode_session
from spass.store.writes import Item
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.simulated.aws import JOB_TARGETS
from tests.simulated.invariants import Acknowledgement, Chain, ChainMember, ClientLog, Reading, head_violations, summary_of
from tests.simulated.schedule import NO_FAULTS, Schedule
from tests.simulated.scripted_turns import LoadHistory, answer_with, call_calculator
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.scopes import scope_of
from tests.unit.sessions.turns import start_turn

AGENT: Final = AgentName("librarian")
USER: Final = UserId("ana")
TENANT: Final = TenantId("demo")
WINDOW: Final = 250
"""The context window in tokens. About forty messages fill 80 % of it."""

_MAX_ATTEMPTS: Final = 20
_SLOW_SECONDS: Final = 90.0
_MAX_BACKOFF: Final = 16.0
_MAX_REDIRECTS: Final = 200


@cache
def config() -> GatewayConfig:
    return GatewayConfig.model_validate({"tenants": [{"id": TENANT}]})


class SimulatedSummarizer(Summarizer):
    """Return a digest of the messages as the summary after a delay, or fail. Call no model."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    async def summarise(
        self,
        scope: Scope,
        messages: Sequence[Message],
        *,
        earlier: str | None,
        mask_observations: bool,
        fallback_model: str | None,
    ) -> Summary:
        assert fallback_model is not None, "its tokens may use any model"
        schedule = self._schedule
        await asyncio.sleep(schedule.random_delay(_SLOW_SECONDS if schedule.rng.random() < 0.1 else 1.0))
        if schedule.fault_rates is not NO_FAULTS and schedule.rng.random() < 0.1:
            raise SummaryFailed("The model wrote nothing.")
        return Summary(summary_of(earlier, messages), fallback_model)


@dataclass(slots=True)
class Gateway:
    """The sessions of one user with one agent, whose model has a window of ``window`` tokens, and a log of all answers."""

    schedule: Schedule
    window: int = WINDOW
    log: ClientLog = field(default_factory=ClientLog)
    aws: MemoryAws = field(init=False)
    sessions: Sessions = field(init=False)
    summaries: SimulatedSummarizer = field(init=False)
    answers: int = 0
    trespasses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = self.schedule.now
        self.aws = MemoryAws(JOB_TARGETS, clock)
        self.aws.table.watch = self._watch
        self.summaries = SimulatedSummarizer(self.schedule)
        self.sessions = Sessions(Cascade(config()), lambda: self.summaries, clock=clock)

    def _watch(self, before: Item | None, after: Item | None) -> None:
        if before is None or after is None:
            return
        if before["sk"] == "HEAD":
            self.trespasses += head_violations(decode_session(before), decode_session(after), self.schedule.now())
        if before["sk"] == "JOB" and before["status"] in ("succeeded", "failed"):
            self.trespasses.append(f"changed after it was finished: {before['id']!r} at {self.schedule.now()}")

    def scope(self) -> Scope:
        return scope_of(self.aws.for_tenant(TENANT), USER)

    async def create(self, options: CreateSession) -> SessionId:
        return (await self.sessions.create(self.scope(), AGENT, options)).id

    async def send(self, session: SessionId, question: str, key: str | None, *, tries: int = _MAX_ATTEMPTS) -> bool:
        """Send ``question`` until it is answered. Return False if it was not. Without a key, retry only while it is certain that
        nothing was recorded.
        """
        schedule, log = self.schedule, self.log
        began = log.asked.setdefault(question, schedule.now())
        not_recorded = question not in log.told
        for number in range(tries):
            try:
                answer = await self._send_with_redirects(session, question, key)
            except (Crash, StorageUnavailable, TimeoutError) as error:
                if key is None:
                    return False
                not_recorded, wait = False, getattr(error, "retry_after", 1.0)
            except SpassError as refused:
                wait = refused.retry_after or 1.0
            else:
                await self._log_answer(question, answer, began)
                return True
            await asyncio.sleep(wait * min(2.0 ** (number + 2), _MAX_BACKOFF) * (0.5 + schedule.rng.random()))
        if not_recorded:
            log.refused.add(question)
        return False

    async def _send_with_redirects(self, session: SessionId, question: str, key: str | None) -> RunResult:
        """Send the request once, and follow its redirects."""
        for _ in range(_MAX_REDIRECTS):
            try:
                return await self._send_once(session, question, key)
            except SessionArchived as archived:
                session = SessionId(str(archived.details["successor_session_id"]))
        raise AssertionError(f"more than {_MAX_REDIRECTS} redirects")

    async def _send_once(self, session: SessionId, question: str, key: str | None) -> RunResult:
        run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
        client_request = idempotent_request(key, question, messages_path(AGENT, session)) if key is not None else None
        request = TurnRequest(session, USER, question, run, self.window, client_request)
        with inject(self.schedule.process()):
            turn = start_turn(self.sessions, self.scope(), request, self._respond)
        rng = self.schedule.rng.random()
        disconnects = self.schedule.fault_rates is not NO_FAULTS and rng < 0.02
        async with asyncio.timeout(100 * rng if disconnects else None):
            return (await turn.answer()).outcome

    async def _respond(self, question: str, load: LoadHistory, shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        """Act as the agent: answer after a delay, and sometimes call a tool, reject the conversation as too long, or fail."""
        schedule, rng = self.schedule, self.schedule.rng
        yield TurnStarted()
        history = await load()
        yield InferenceStarted(1)
        if rng.random() < 0.02:
            shorter = await shorten_history()
            if shorter is None:
                yield Failed(ContextLengthExceeded("Too long."))
                return
            history = shorter
        if (number := rng.random()) < 0.9:
            await asyncio.sleep(schedule.random_delay(0.2 if number < 0.8 else 5.0))
        elif number < 0.98 or schedule.fault_rates is NO_FAULTS:
            await asyncio.sleep(schedule.random_delay(_SLOW_SECONDS))
        else:
            yield Failed(UpstreamError("No."))
            return
        if rng.random() < 0.3:
            async for event in call_calculator():
                yield event
            yield InferenceStarted(2)
        self.answers += 1
        text = f"answer {self.answers} to {question}"
        self.log.shown[text] = history
        for event in answer_with(text):
            yield event

    async def _log_answer(self, question: str, outcome: RunResult, began: float) -> None:
        """Log the turn of an answer, which must be stored when its client gets the answer."""
        assert outcome.session_id is not None
        turns = await load_turns(self.aws.for_tenant(TENANT), outcome.session_id, 1)
        (turn,) = [turn for turn in turns if turn.answer.id == outcome.message_id]
        assert (turn.answer.seq, turn.answer.message.content) == (outcome.seq, outcome.content)
        messages = [(stored.id, stored.message.role.value, stored.message.content) for stored in turn.messages]
        acknowledgement = Acknowledgement(outcome.session_id, turn.first_seq, messages, began, self.schedule.now())
        earlier = self.log.told.setdefault(question, acknowledgement)
        assert earlier[:3] == acknowledgement[:3], f"two answers to {question}: {earlier} and {acknowledgement}"

    async def read(self, session: SessionId) -> None:
        """Read the history page by page until a page fails."""
        began, messages, at_end = self.schedule.now(), list[tuple[str, str]](), False
        limit, cursor = self.schedule.rng.choice([3, 20, 200]), None
        with inject(self.schedule.process()), suppress(Crash, StorageUnavailable):
            while not at_end:
                page = await self.sessions.history(self.scope(), AGENT, session, cursor, limit)
                messages += [(str(message.id), message.content) for message in page.messages]
                cursor = page.next_cursor
                at_end = cursor is None
        self.log.readings.append(Reading(session, messages, at_end, began, self.schedule.now()))

    async def chains(self) -> list[Chain]:
        """Return all stored chains, each with its oldest member first. A session without a parent starts a chain."""
        members = {session.id: await self._member(session) for session in self.heads()}
        chains: list[Chain] = []
        for first in [id_ for id_, member in members.items() if member.session.parent_session_id is None]:
            chain, next_member = list[ChainMember](), members.pop(first, None)
            while next_member is not None:
                chain.append(next_member)
                after = next_member.session.successor_session_id
                next_member = members.pop(after, None) if after is not None else None
            chains.append(chain)
        return [*chains, *([member] for member in members.values())]

    async def _member(self, session: Session) -> ChainMember:
        store = self.aws.for_tenant(TENANT)
        summary = await read_summary(store, session.id, session.summary_id) if session.summary_id else None
        return ChainMember(session, await load_turns(store, session.id, 1), summary)

    def live_holds(self) -> list[str]:
        """Return the sessions with a live hold."""
        return [head.id for head in self.heads() if head.hold is not None and head.hold.live(self.schedule.now())]

    def heads(self) -> list[Session]:
        """Return the heads of all sessions, oldest first."""
        heads = (decode_session(item) for item in self.aws.table.items() if item["sk"] == "HEAD" and "#SES#" in str(item["pk"]))
        return sorted(heads, key=lambda head: head.id)
