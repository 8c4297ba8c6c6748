"""Cells of code: their audit, their events, and what their code asks for."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from spass.agents.performers.code import CodePerformer
from spass.calls.scope import Scope
from spass.core.code_calls import CallReply, CodeRequest, Perform, Query, ToolRequest
from spass.core.effects import CallError, Cell, CellResult, Infer, Queries, RunCode, ToolOutcome, user
from spass.core.errors import InputRefused, ModelNotAllowed, SandboxUnavailable, SpassError, StorageUnavailable, UpstreamTimeout
from spass.core.events import CallEvent, Nested, ToolCallFinished, ToolCallStarted, ToolProgress
from spass.core.ids import AgentName, ApprovalId
from spass.core.messages import Json, Message, Role, ToolCall
from spass.core.time import Deadline
from spass.models.types import ChatDelta
from tests.simulated.interpreter import InProcessSandbox
from tests.unit.tools.fakes import scope_for, table_of

pytestmark = pytest.mark.anyio

QUERIES = Queries("mini", 0.3, 7, 100)
CALL = ToolCall("call_cell", "code_interpreter", json.dumps({"code": "…"}))
Run = Callable[[Cell, Sequence[str], Perform], Awaitable[CellResult]]


@dataclass
class ScriptedInterpreter:
    """An interpreter whose cells do what ``script`` does."""

    script: Run

    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        return await self.script(cell, tools, perform)

    async def close(self) -> None: ...


def ask(*requests: CodeRequest, replies: list[CallReply] | None = None) -> ScriptedInterpreter:
    """Return an interpreter whose cell makes ``requests`` in one wait and puts what it learns into ``replies``."""

    async def script(_: Cell, __: Sequence[str], perform: Perform) -> CellResult:
        received = await perform(requests)
        if replies is not None:
            replies.extend(received)
        return CellResult("done")

    return ScriptedInterpreter(script)


@dataclass
class World:
    """The functions that code can call. ``answer`` answers queries and ``outcome`` tool calls."""

    answer: Callable[[str], str | SpassError] = lambda prompt: f"<think>hm</think>re: {prompt}"
    outcome: Callable[[ToolCall], ToolOutcome | SpassError] = lambda call: result_of(call, {"sum": 4})
    scope: Scope = field(default_factory=lambda: replace(scope_for(), agent=AgentName("coder")))
    effects: list[Infer] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    called: list[ToolCall] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    hang: asyncio.Event | None = None
    redact: Callable[[str], str] = str

    @property
    def performer(self) -> CodePerformer:
        return CodePerformer(self.scope, self.infer, self.call_tools, ("calculator",), InProcessSandbox, self.redact)

    def infer(self, scope: Scope) -> "World":
        self.scopes.append(scope)
        return self

    async def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        self.effects.append(effect)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.hang is not None:
                await self.hang.wait()
            reply = self.answer(effect.messages[0].content)
            if isinstance(reply, SpassError):
                raise reply
            yield ChatDelta(reply)
        finally:
            self.at_once -= 1

    def begins_thinking(self, _: Infer) -> bool:
        return False

    async def call_tools(self, scope: Scope, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
        self.scopes.append(scope)
        for call in calls:
            self.called.append(call)
            yield ToolCallStarted(call)
            yield ToolProgress(call.id, "half")
            yield Nested("delegate", call.id, ToolCallStarted(ToolCall("inner", "clock", "{}")))
            if self.hang is not None:
                await self.hang.wait()
            outcome = self.outcome(call)
            if isinstance(outcome, SpassError):
                raise outcome
            yield Nested("delegate", call.id, ToolCallFinished(result_of(ToolCall("inner", "clock", "{}"), 1)))
            yield ToolCallFinished(outcome)

    async def items(
        self, interpreter: ScriptedInterpreter, cell: Cell | None = None, performer: CodePerformer | None = None
    ) -> list[CallEvent | CellResult]:
        effect = RunCode(cell or Cell("…", queries=QUERIES, tools=True))
        return [item async for item in (performer or self.performer).perform(effect, CALL, interpreter)]

    async def replies(self, *requests: CodeRequest, cell: Cell | None = None) -> list[CallReply]:
        replies: list[CallReply] = []
        await self.items(ask(*requests, replies=replies), cell)
        return replies


def result_of(call: ToolCall, result: Json, **fields: object) -> ToolOutcome:
    message = Message(Role.TOOL, json.dumps(result), tool_call_id=call.id)
    return replace(ToolOutcome(call, {}, result, message, 1), **fields)  # type: ignore[arg-type]


def codes(replies: Sequence[CallReply]) -> list[str | None]:
    return [reply.error.code if reply.error is not None else None for reply in replies]


def finished(items: Sequence[CallEvent | CellResult]) -> ToolOutcome:
    """Return the outcome of the cell."""
    (outcome,) = [item.outcome for item in items if isinstance(item, ToolCallFinished)]
    return outcome


def printing(result: CellResult) -> ScriptedInterpreter:
    async def script(*_: object) -> CellResult:
        return result

    return ScriptedInterpreter(script)


async def test_a_cell_is_a_call_whose_last_item_is_its_result() -> None:
    world = World()
    result = CellResult("4\n", None, 3, "4")
    started, ended, last = await world.items(printing(result))
    assert (started, last) == (ToolCallStarted(CALL), result)
    assert isinstance(ended, ToolCallFinished)
    outcome = ended.outcome
    assert (outcome.call, outcome.ok, outcome.result) == (CALL, True, {"output": "4\n", "error": None, "truncated": 3})
    assert json.loads(outcome.message.content) == outcome.result
    assert table_of(world.scope).audited("tool") == [("code_interpreter", "ok")]


async def test_a_cell_whose_code_failed_is_a_failed_call() -> None:
    world = World()
    outcome = finished(await world.items(printing(CellResult("so far", "ZeroDivisionError: division by zero"))))
    assert (outcome.ok, outcome.result) == (
        False,
        {"output": "so far", "error": "ZeroDivisionError: division by zero", "truncated": 0},
    )
    assert table_of(world.scope).audited("tool") == [("code_interpreter", "tool_failed")]


@pytest.mark.parametrize("letter", ["x", "é", "\x00", "\ud800", '"'])
async def test_the_recorded_output_of_a_cell_fits_and_the_rest_is_counted(letter: str) -> None:
    result = CellResult(letter * 100_000, letter * 100_000, 7)
    *_, ended, last = await World().items(printing(result), Cell("…", max_output_chars=100_000))
    assert last == result
    assert isinstance(ended, ToolCallFinished)
    recorded = json.loads(ended.outcome.message.content)
    assert len(ended.outcome.message.content.encode()) <= 64 * 1024
    assert len(recorded["output"]) + recorded["truncated"] == 100_007
    assert len(recorded["output"]) > 5000


async def test_secrets_in_what_code_prints_and_answers_are_redacted() -> None:
    world = World(redact=lambda text: text.replace("secret", "[…]"))
    *_, ended, last = await world.items(printing(CellResult("a secret", "the secret", 0, "my secret")))
    assert last == CellResult("a […]", "the […]", 0, "my […]")
    assert isinstance(ended, ToolCallFinished)
    assert ended.outcome.result == {"output": "a […]", "error": "the […]", "truncated": 0}


@pytest.mark.parametrize(("kept", "output"), [(4, "see "), (6, "see "), (10, "see […]"), (20, "see […], see ")])
async def test_a_secret_that_the_bound_of_the_output_cuts_is_redacted(kept: int, output: str) -> None:
    async def print_all(cell: Cell, *_: object) -> CellResult:
        text = "see secret, see secret"
        return CellResult(text[: cell.max_output_chars], None, max(len(text) - cell.max_output_chars, 0))

    world = World(redact=lambda text: text.replace("secret", "[…]"))
    *_, last = await world.items(ScriptedInterpreter(print_all), Cell("…", max_output_chars=kept))
    assert last == CellResult(output, None, 22 - kept)


async def test_secrets_in_the_arguments_of_codes_calls_are_redacted() -> None:
    world = World(redact=lambda text: text.replace("secret", "[…]"))
    await world.replies(ToolRequest("calculator", {"expression": "a secret"}), cell=Cell("…", tools=True))
    assert [json.loads(call.arguments) for call in world.called] == [{"expression": "a […]"}]


async def test_code_confirms_a_change_only_with_a_token_that_its_model_wrote() -> None:
    world = World()
    confirmed = ToolRequest("calculator", {"confirm_token": "token-1"})
    (unread,) = await world.replies(confirmed, cell=Cell("f(confirm_token=t)", tools=True))
    assert unread.error is not None
    assert unread.error.code == "confirm_token_invalid"
    assert world.called == []
    (read,) = await world.replies(confirmed, cell=Cell("f(confirm_token='token-1')", tools=True))
    assert (read.error, len(world.called)) == (None, 1)


async def test_a_query_is_a_call_aside_under_the_scope_of_the_cell() -> None:
    world = World()
    (reply,) = await world.replies(Query("What is this?"))
    assert reply == CallReply("re: What is this?")
    assert world.effects == [Infer((user("What is this?"),), "none", 0.3, 7, model="mini", aside=True)]
    (scope,) = world.scopes
    (record,) = table_of(world.scope).written
    assert (scope.parent, scope.tally) == (record.attributes["request_id"], world.scope.tally)


async def test_a_batch_runs_eight_at_a_time_and_answers_in_its_order() -> None:
    world = World()
    replies = await world.replies(*(Query(str(number)) for number in range(64)))
    assert [reply.value for reply in replies] == [f"re: {number}" for number in range(64)]
    assert world.most_at_once == 8


async def test_a_turn_makes_so_many_queries_and_no_more() -> None:
    world = World()
    performer, replies = world.performer, list[CallReply]()
    cell = Cell("…", queries=QUERIES)
    for _ in range(2):
        await world.items(ask(*(Query("?") for _ in range(60)), replies=replies), cell, performer)
    assert codes(replies) == [None] * 100 + ["too_many_sub_calls"] * 20
    assert len(world.effects) == 100
    assert "100" in (replies[-1].error or CallError("", "")).message
    assert codes(await world.replies(Query("?"), cell=Cell("…", queries=replace(QUERIES, max_calls=0)))) == ["too_many_sub_calls"]


async def test_a_failed_query_is_an_error_for_the_code() -> None:
    failures = {"a": InputRefused("Empty."), "b": ModelNotAllowed("Not you.")}
    world = World(answer=lambda prompt: failures.get(prompt, "fine"))
    replies = await world.replies(Query("a"), Query("b"), Query("c"))
    assert replies == [
        CallReply(error=CallError("input_refused", "Empty.")),
        CallReply(error=CallError("model_not_allowed", "Not you.")),
        CallReply("fine"),
    ]


async def test_a_tool_call_of_code_is_an_event_within_the_cell() -> None:
    world = World()
    replies = list[CallReply]()
    items = await world.items(ask(ToolRequest("calculator", {"expression": "2+2"}), replies=replies))
    assert replies == [CallReply({"sum": 4})]
    (call,) = world.called
    assert (call.name, json.loads(call.arguments)) == ("calculator", {"expression": "2+2"})
    nested = [item for item in items if isinstance(item, Nested)]
    assert [(event.agent, event.parent_id, type(event.event)) for event in nested] == [
        ("coder", "call_cell", ToolCallStarted),
        ("coder", "call_cell", ToolProgress),
        ("delegate", call.id, ToolCallStarted),
        ("delegate", call.id, ToolCallFinished),
        ("coder", "call_cell", ToolCallFinished),
    ]
    assert items.index(nested[0]) > items.index(ToolCallStarted(CALL))


async def test_calls_of_code_have_ids_of_their_own() -> None:
    world = World()
    await world.replies(*[ToolRequest("calculator", {})] * 20)
    assert len({call.id for call in world.called}) == 20


async def test_a_failed_tool_call_is_an_error_for_the_code() -> None:
    failure = {"error": {"code": "invalid_arguments", "message": "No."}}
    world = World(outcome=lambda call: result_of(call, failure, ok=False))
    assert await world.replies(ToolRequest("calculator", {})) == [CallReply(error=CallError("invalid_arguments", "No."))]


async def test_a_result_that_looks_like_an_error_is_a_result() -> None:
    found = {"error": {"code": "none", "message": "None."}}
    world = World(outcome=lambda call: result_of(call, found))
    assert await world.replies(ToolRequest("calculator", {})) == [CallReply(found)]


async def test_code_makes_no_calls_that_its_cell_does_not_allow() -> None:
    world = World()
    replies = await world.replies(Query("?"), ToolRequest("calculator", {}), cell=Cell("…"))
    assert codes(replies) == ["invalid_request", "tool_not_found"]
    assert (world.effects, world.called) == ([], [])


@pytest.mark.parametrize(("tools", "expected"), [(True, ("calculator",)), (False, ())])
async def test_the_interpreter_learns_the_names_of_the_tools(*, tools: bool, expected: tuple[str, ...]) -> None:
    async def script(_: Cell, names: Sequence[str], __: Perform) -> CellResult:
        return CellResult(",".join(names))

    *_, result = await World().items(ScriptedInterpreter(script), Cell("…", tools=tools))
    assert result == CellResult(",".join(expected))


async def test_the_cell_carries_what_its_calls_wait_for_and_changed() -> None:
    waiting: Json = {"approval_id": "apr_1", "status": "pending"}

    def outcome(call: ToolCall) -> ToolOutcome:
        if call.name == "delegate":
            return result_of(call, {"approvals": [{"approval_id": "apr_2"}]}, waiting=(ApprovalId("apr_2"),), versions=(3,))
        if call.name == "write":
            return result_of(call, waiting, approval={"id": "apr_1"}, waiting=(ApprovalId("apr_1"),))
        return result_of(call, {}, versions=(4,))

    replies = list[CallReply]()
    requests = [ToolRequest(name, {}) for name in ("write", "delegate", "other")]
    ended = finished(await World(outcome=outcome).items(ask(*requests, replies=replies)))
    assert replies[0] == CallReply(waiting)
    assert (ended.waiting, ended.versions) == (("apr_1", "apr_2"), (3, 4))
    assert ended.result == {"output": "done", "error": None, "truncated": 0, "approvals": [waiting, {"approval_id": "apr_2"}]}


@pytest.mark.parametrize("request_of_code", [Query("?"), ToolRequest("calculator", {})])
async def test_an_error_of_storage_ends_the_turn_after_the_ends_of_all_calls(request_of_code: CodeRequest) -> None:
    down = StorageUnavailable("Down.")
    world = World(answer=lambda _: down, outcome=lambda _: down)
    items: list[CallEvent | CellResult] = []
    with pytest.raises(StorageUnavailable):
        async for item in world.performer.perform(RunCode(Cell("…", queries=QUERIES, tools=True)), CALL, ask(request_of_code)):
            items.append(item)
    assert not _open_calls(items)
    assert finished(items).result == {"error": {"code": "storage_unavailable", "message": "Down."}}
    assert table_of(world.scope).audited("tool") == [("code_interpreter", "storage_unavailable")]


async def test_an_error_of_storage_cancels_the_other_calls_and_ends_them() -> None:
    world = World(answer=lambda _: StorageUnavailable("Down."))
    started = asyncio.Event()

    async def call_tools(_: Scope, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
        yield ToolCallStarted(calls[0])
        started.set()
        await asyncio.Event().wait()

    async def script(_: Cell, __: Sequence[str], perform: Perform) -> CellResult:
        await perform([ToolRequest("calculator", {}), Query("?")])
        raise AssertionError("the turn has ended")

    performer = CodePerformer(world.scope, world.infer, call_tools, ("calculator",), InProcessSandbox, str)
    items: list[CallEvent | CellResult] = []
    with pytest.raises(StorageUnavailable):
        async for item in performer.perform(RunCode(Cell("…", queries=QUERIES, tools=True)), CALL, ScriptedInterpreter(script)):
            items.append(item)
    assert started.is_set()
    assert not _open_calls(items)


async def test_a_sandbox_that_does_not_answer_ends_the_turn() -> None:
    async def script(*_: object) -> CellResult:
        raise SandboxUnavailable("Gone.")

    world = World()
    with pytest.raises(SandboxUnavailable):
        await world.items(ScriptedInterpreter(script))
    assert table_of(world.scope).audited("tool") == [("code_interpreter", "sandbox_unavailable")]


async def test_a_cell_that_does_not_end_before_the_deadline_ends_the_turn() -> None:
    async def script(*_: object) -> CellResult:
        await asyncio.Event().wait()
        raise AssertionError

    world = World()
    world.scope = replace(world.scope, deadline=Deadline.after(0.01))
    with pytest.raises(UpstreamTimeout):
        await world.items(ScriptedInterpreter(script))
    assert table_of(world.scope).audited("tool") == [("code_interpreter", "upstream_timeout")]


@pytest.mark.parametrize("request_of_code", [Query("?"), ToolRequest("calculator", {})])
async def test_closing_cancels_the_cell_and_everything_that_it_asked_for(request_of_code: CodeRequest) -> None:
    world = World(hang=asyncio.Event())
    items = world.performer.perform(RunCode(Cell("…", queries=QUERIES, tools=True)), CALL, ask(request_of_code))
    assert await anext(items) == ToolCallStarted(CALL)
    while not (world.effects or world.called):
        await asyncio.sleep(0)
    await items.aclose()
    assert world.at_once == 0
    assert table_of(world.scope).audited("tool") == [("code_interpreter", "cancelled")]


async def test_the_progress_of_a_cell_tells_how_many_queries_it_makes() -> None:
    async def script(_: Cell, __: Sequence[str], perform: Perform) -> CellResult:
        await perform([Query("?")])
        await perform([Query("?")] * 64)
        return CellResult("")

    items = await World().items(ScriptedInterpreter(script))
    progress = [item.detail for item in items if isinstance(item, ToolProgress)]
    assert progress == ["1 sub-call", "64 sub-calls"]


async def test_a_prompt_with_half_a_character_can_be_sent() -> None:
    world = World()
    await world.replies(Query("a\ud800b"))
    assert world.effects[0].messages == (user("a?b"),)


def _open_calls(items: Sequence[CallEvent | CellResult]) -> set[str]:
    """Return the ids of calls that started and did not end. A call ends before the call that it is part of."""
    opened: dict[str, str | None] = {}
    for item in items:
        event, parent = (item.event, item.parent_id) if isinstance(item, Nested) else (item, None)
        if isinstance(event, ToolCallStarted):
            opened[event.call.id] = parent
        elif isinstance(event, ToolCallFinished):
            opened.pop(event.outcome.call.id)
            assert event.outcome.call.id not in opened.values()
    return {*opened}
