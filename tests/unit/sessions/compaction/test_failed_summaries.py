"""A failed summary leaves its session unchanged and usable; a later compaction succeeds."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from spass.agents.driver import ShortenHistory
from spass.calls.scope import Scope
from spass.core.events import Event, InferenceFinished, InferenceStarted, TurnFinished, TurnStarted
from spass.core.ids import AgentName, SessionId
from spass.core.messages import FinishReason, Message, Role
from spass.core.run_result import AgentRun
from spass.core.time import Deadline
from spass.sessions.compaction.job import Job, JobStatus
from spass.sessions.compaction.jobs import CompactionJobs
from spass.sessions.compaction.steps import CompactionSteps
from spass.sessions.history import MessageView
from spass.sessions.hold import TurnRequest
from spass.sessions.service import Sessions
from spass.sessions.session import CreateSession, Session
from spass.store.tenant_store import TenantStore
from spass.tenancy.settings import Cascade
from tests.simulated.scripted_turns import LoadHistory
from tests.unit.calls.scripted_provider import make_scope
from tests.unit.sessions.compaction.summary_models import FAILURES, config, summarizer_over, summary_deltas, summary_model
from tests.unit.sessions.turns import ScriptedTurn, start_turn

pytestmark = pytest.mark.anyio

AGENT = AgentName("librarian")
CONFIG = config(compact_keep_last_n=2, compact_strategy="auto")


@dataclass
class SessionSetup:
    """A session with two turns, and the model that summarises the first."""

    store: TenantStore
    model_answer: Any
    session: SessionId = field(init=False)

    def __post_init__(self) -> None:
        self.model = summary_model(lambda _: self.model_answer)
        self.summarizer = summarizer_over(self.model, CONFIG)
        self.sessions = Sessions(Cascade(CONFIG), lambda: self.summarizer)
        self.scope: Scope = make_scope(self.store)

    async def with_two_turns(self) -> "SessionSetup":
        """Create the session with its two turns."""
        self.session = (await self.sessions.create(self.scope, AGENT, CreateSession())).id
        for text in ("My budget is 300 Euro.", "And the tower?"):
            await self.say(text)
        return self

    async def say(self, text: str, *, window: int = 10**6) -> ScriptedTurn:
        async def respond(_: str, load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
            yield TurnStarted()
            await load()
            yield InferenceStarted(1)
            yield InferenceFinished(Message(Role.ASSISTANT, "Noted."), FinishReason.STOP)
            yield TurnFinished(FinishReason.STOP)

        run = AgentRun(self.scope.caller.request_id, AGENT, "orchestrator", "own")
        request = TurnRequest(self.session, self.scope.caller.require_user(), text, run, window)
        turn = start_turn(self.sessions, self.scope, request, respond)
        await turn.answer()
        return turn

    async def compact(self) -> Job:
        """Run the steps of a job, as the state machine does."""
        steps = CompactionSteps(self.summarizer)
        job = await CompactionJobs().start(self.scope, AGENT, self.session, fallback_model="own")
        await steps.plan(self.store, job.id)
        await steps.summarise(self.store, job.id, Deadline.after(60))
        await steps.commit(self.store, job.id)
        return await CompactionJobs().get(self.scope, job.id)

    async def head(self) -> Session:
        return await self.sessions.get(self.scope, AGENT, self.session)

    async def history(self) -> list[MessageView]:
        return (await self.sessions.history(self.scope, AGENT, self.session, None, 100)).messages


EVERY_FAILURE = pytest.mark.parametrize(("model_answer", "reason"), FAILURES.values(), ids=FAILURES.keys())


@EVERY_FAILURE
async def test_a_turn_continues_in_the_unchanged_session(store: TenantStore, model_answer: Any, reason: str) -> None:
    setup = await SessionSetup(store, model_answer).with_two_turns()
    before = await setup.history()
    turn = await setup.say("Go on.", window=1)
    outcome = (await turn.answer()).outcome
    assert (outcome.session_id, outcome.compaction, outcome.compaction_error) == (setup.session, None, "summary_failed")
    conversation = turn.run.conversation
    assert conversation is not None
    assert conversation.compaction_error is not None
    assert conversation.compaction_error.details["reason"] == reason
    after = await setup.history()
    assert after[: len(before)] == before
    assert [message.content for message in after[len(before) :]] == ["Go on.", "Noted."]
    assert (await setup.head()).archived_at is None
    setup.model_answer = summary_deltas("Ana has 300 Euro.")
    assert (await (await setup.say("And now?", window=1)).answer()).outcome.compaction is not None


@EVERY_FAILURE
async def test_a_failed_job_releases_the_unchanged_session(store: TenantStore, model_answer: Any, reason: str) -> None:
    setup = await SessionSetup(store, model_answer).with_two_turns()
    before = await setup.history(), await setup.head()
    job = await setup.compact()
    assert job.status is JobStatus.FAILED
    assert job.failure is not None
    assert (job.failure.code, job.failure.details["reason"]) == ("summary_failed", reason)
    assert (await setup.history(), await setup.head()) == before
    turn = await setup.say("Go on.")
    assert (await turn.answer()).outcome.session_id == setup.session
    setup.model_answer = summary_deltas("Ana has 300 Euro.")
    retry = await setup.compact()
    assert retry.status is JobStatus.SUCCEEDED
    source = await setup.head()
    assert source.successor_session_id == retry.plan.successor
    assert [message.content for message in await setup.history()][:4] == [message.content for message in before[0]]
