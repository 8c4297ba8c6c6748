"""The state that the turn of an operator leaves, and who may continue its session."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spass.agents.driver import ShortenHistory
from spass.core.effects import Recalled, SearchNotes, StoreNote, ToolOutcome
from spass.core.errors import InvalidRequest
from spass.core.events import Event, InferenceFinished, InferenceStarted, ToolCallFinished, TurnFinished, TurnStarted
from spass.core.ids import AgentName, Operator, OperatorId, RequestId, UserId
from spass.core.json import dump
from spass.core.messages import FinishReason, Json, Message, Role, ToolCall
from spass.core.run_result import AgentRun, RunResult
from spass.memory.state import read_state
from spass.sessions.hold import TurnRequest
from spass.sessions.operators import OperatorCommit
from spass.testing.aws import MemoryAws
from tests.unit.sessions.conftest import SessionsHarness, responder
from tests.unit.sessions.turns import start_turn

pytestmark = pytest.mark.anyio

WATCH: Final = Operator(UserId("ana"), OperatorId("watch"))
CLERK: Final = AgentName("clerk")


@dataclass
class Memory:
    """A memory that has only the state that the kind has set."""

    next_state: Json = None

    async def recall(self, effect: SearchNotes) -> Recalled:
        return Recalled()

    async def keep(self, effect: StoreNote) -> str:
        return ""

    def set_state(self, value: Json) -> None:
        self.next_state = value


@dataclass
class Runs:
    """Runs of the operator ``watch``."""

    harness: SessionsHarness = field(default_factory=lambda: SessionsHarness(MemoryAws()))

    async def run(self, memory: Memory | None, *tools: ToolOutcome, reason: FinishReason = FinishReason.STOP) -> RunResult:
        """Answer "hello" with "Hi." after the calls ``tools``."""

        async def agent(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
            yield TurnStarted()
            yield InferenceStarted(1)
            asked = Message(Role.ASSISTANT, "", tuple(tool.call for tool in tools))
            yield InferenceFinished(asked, FinishReason.TOOL_CALLS)
            for tool in tools:
                yield ToolCallFinished(tool)
            yield InferenceStarted(2)
            yield InferenceFinished(Message(Role.ASSISTANT, "Hi."), FinishReason.STOP)
            yield TurnFinished(reason)

        harness, sessions = self.harness, self.harness.sessions
        opening, pointer = await sessions.open_operator(harness.scope(), CLERK, WATCH)
        run = AgentRun(RequestId("req_1"), CLERK, "operative", "talker")
        request = TurnRequest(opening.session, WATCH.user, "hello", run, 250, opening=opening, operator=WATCH.id)
        joins = [OperatorCommit(pointer, memory, "hello")]
        turn = start_turn(sessions, harness.scope().for_agent(CLERK, opening.session), request, responder(agent), joins)
        return (await turn.answer()).outcome

    async def state(self) -> Any:
        stored = await read_state(self.harness.scope().store, WATCH)
        assert stored is not None
        return stored.state


def store(content: str, *, key: str = "state", ok: bool = True) -> ToolOutcome:
    """Return a call of ``memory_store`` that is over."""
    arguments = {"key": key, "content": content}
    result: Json = {"key": key.strip()} if ok else {"error": {"code": "invalid_arguments"}}
    call = ToolCall("call_1", "memory_store", dump(arguments))
    return ToolOutcome(call, arguments, result, Message(Role.TOOL, dump(result), (), "call_1"), ok=ok, duration_ms=1)


@pytest.mark.parametrize("state", ["Two ships.", '{"ships": 2}', "\u00fc\n\u2028 \U0001f680", "7"])
async def test_a_text_that_the_model_stored_stays_exactly_that(state: str) -> None:
    runs = Runs()
    await runs.run(Memory(state))
    assert await runs.state() == state


@pytest.mark.parametrize("wanted", [None, {"input": "hello", "answer": "Hi."}])
async def test_a_turn_without_a_stored_state_leaves_input_answer_and_time(wanted: Json) -> None:
    runs = Runs()
    outcome = await runs.run(Memory(wanted))
    assert await runs.state() == {"input": "hello", "answer": "Hi.", "at": outcome.created_at}


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE])
@pytest.mark.parametrize("key", ["state", " state "])
async def test_a_turn_that_was_cut_before_its_kind_set_the_state_keeps_what_was_stored(reason: FinishReason, key: str) -> None:
    runs = Runs()
    await runs.run(Memory(), store("One ship."), store("Two ships.", key=key), store("no", ok=False), reason=reason)
    assert await runs.state() == "Two ships."


@pytest.mark.parametrize("tool", [store("a note", key="harbour"), store("refused", ok=False)])
async def test_a_turn_that_was_cut_without_a_stored_state_leaves_what_is_kept(tool: ToolOutcome) -> None:
    runs = Runs()
    await runs.run(Memory(), tool, reason=FinishReason.CANCELLED)
    assert (await runs.state())["answer"] == "Hi."


async def test_a_kind_that_does_not_remember_leaves_the_state_alone() -> None:
    runs = Runs()
    first = await runs.run(Memory("Two ships."))
    second = await runs.run(None)
    assert (await runs.state(), second.session_id) == ("Two ships.", first.session_id)


async def test_the_session_of_an_operator_takes_no_message_of_anybody_else() -> None:
    runs = Runs()
    session = (await runs.run(None)).session_id
    assert session is not None
    run = AgentRun(RequestId("req_1"), CLERK, "orchestrator", "talker")
    sessions, scope = runs.harness.sessions, runs.harness.scope().for_agent(CLERK, session)
    before = await sessions.get(runs.harness.scope(), CLERK, session)

    async def agent(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        raise AssertionError("nothing is called")
        yield

    for operator in (None, OperatorId("other")):
        request = TurnRequest(session, WATCH.user, "hello", run, 250, operator=operator)
        with pytest.raises(InvalidRequest, match="belongs to the operator 'watch'"):
            await start_turn(sessions, scope, request, responder(agent)).answer()
    stored = await sessions.get(runs.harness.scope(), CLERK, session)
    assert (stored.message_count, stored.hold) == (before.message_count, None)
