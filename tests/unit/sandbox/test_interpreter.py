"""The interpreter of a turn, over children that follow a script"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import CallError, CellResult
from spass.core.errors import BudgetExceeded, SandboxUnavailable
from spass.core.json import read_object
from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox import lines
from spass.sandbox.limits import MAX_LINE_BYTES, MAX_REQUEST_CHARS, Limits
from tests.unit.sandbox.scripted_children import (
    Die,
    Hang,
    Move,
    Outside,
    Raw,
    ScriptedChild,
    ScriptedLauncher,
    cell,
    end_of_cell,
    interpreter,
)

pytestmark = pytest.mark.anyio

TOOLS = ("calculator",)
LIVE = pytest.mark.parametrize("is_live", [True, False], ids=["live", "replayed"])


@LIVE
async def test_cells_share_their_state(is_live: bool) -> None:
    launcher, outside = ScriptedLauncher(is_live=is_live), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("set x", "say one"), TOOLS, outside.perform)
    assert await turn.run(cell("get x", "say two"), TOOLS, outside.perform) == CellResult("two")
    assert len(launcher.starts) == (1 if is_live else 2)
    await turn.close()
    assert not launcher.open_children


@LIVE
async def test_calls_of_code_are_performed_once_each(is_live: bool) -> None:
    launcher, outside = ScriptedLauncher(is_live=is_live), Outside()
    turn = interpreter(launcher)
    first = await turn.run(cell("ask a", "ask b c", "call calculator"), TOOLS, outside.perform)
    second = await turn.run(cell("ask d"), TOOLS, outside.perform)
    assert (first, second) == (CellResult("ABCCALCULATOR"), CellResult("D"))
    assert outside.performed == ["a", "b", "c", "calculator", "d"]
    await turn.close()


async def test_a_child_that_is_not_live_starts_with_the_journal_so_far() -> None:
    launcher, outside = ScriptedLauncher(is_live=False), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("ask a", "ask b"), TOOLS, outside.perform)
    journals = [[[entry["replies"] for entry in cell] for cell in child.request["journal"]] for child in launcher.starts]
    a, b = [{"value": "A"}], [{"value": "B"}]
    assert journals == [[[]], [[a]], [[a, b]]]


@LIVE
async def test_an_error_of_a_call_reaches_the_code(is_live: bool) -> None:
    async def perform(requests: Sequence[CodeRequest]) -> list[CallReply]:
        return [CallReply(error=CallError("too_many_sub_calls", "Enough.")) for _ in requests]

    turn = interpreter(ScriptedLauncher(is_live=is_live))
    assert await turn.run(cell("ask a"), TOOLS, perform) == CellResult("too_many_sub_calls")


BREAKING = ["die", "exceed", "spin 31", "final answer"]


@LIVE
@pytest.mark.parametrize("breaking", BREAKING)
async def test_a_cell_that_breaks_leaves_no_trace(is_live: bool, breaking: str) -> None:
    launcher, outside = ScriptedLauncher(is_live=is_live), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("set x", "ask a"), TOOLS, outside.perform)
    if breaking.startswith("spin") and not is_live:
        breaking = "die"  # a child that is not live has ended already
    broken = await turn.run(cell("set y", "ask b", breaking), TOOLS, outside.perform)
    assert (broken.error is None) == (broken.final is not None)
    assert await turn.run(cell("get x", "say fine"), TOOLS, outside.perform) == CellResult("fine")
    assert (await turn.run(cell("get y"), TOOLS, outside.perform)).error == "NameError: y"
    assert outside.performed == ["a", "b"]
    await turn.close()
    assert not launcher.open_children


async def test_an_ordinary_error_keeps_the_state() -> None:
    launcher, outside = ScriptedLauncher(), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("set x", "get y"), TOOLS, outside.perform)
    assert await turn.run(cell("get x"), TOOLS, outside.perform) == CellResult("")
    assert len(launcher.starts) == 1


async def test_output_over_the_limit_is_cut_and_counted() -> None:
    turn = interpreter(ScriptedLauncher([lambda _: iter([{"ready": {}}, end_of_cell(0, output="x" * 30, truncated=5)])]))
    result = await turn.run(cell(max_output_chars=10), TOOLS, Outside().perform)
    assert (result.output, result.truncated) == ("x" * 10, 25)


def forged(*moves: Move) -> Any:
    def script(_: ScriptedChild) -> Iterator[Move]:
        return iter([{"ready": {}}, *moves, Hang()])

    return script


FORGED: dict[str, Any] = {
    "the end of another cell": end_of_cell(1),
    "the end of a cell before the first": end_of_cell(-1),
    "two ways at once": {**end_of_cell(0), "suspended": True},
    "a second greeting": {"ready": {}},
    "an end of the program": {"suspended": True},
    "a call of another cell": {"effect": {"cell": 1, "hash": "h", "requests": [{"query": "a"}]}},
    "a call of a tool that the code has not": {
        "effect": {"cell": 0, "hash": "h", "requests": [{"tool": "rag_index_delete", "arguments": {}}]}
    },
    "no call": {"effect": {"cell": 0, "hash": "h", "requests": []}},
    "65 calls": {"effect": {"cell": 0, "hash": "h", "requests": [{"query": "a"}] * 65}},
    "a call of another kind": {"effect": {"cell": 0, "hash": "h", "requests": [{"fetch": "http://10.0.0.1"}]}},
    "a call with too much text": {"effect": {"cell": 0, "hash": "h", "requests": [{"query": "a" * (4 * 2**20 + 1)}]}},
    "two calls of tools at once": {
        "effect": {"cell": 0, "hash": "h", "requests": [{"tool": name, "arguments": {}} for name in ("calculator", "calculator")]}
    },
    "a query beside a call of a tool": {
        "effect": {"cell": 0, "hash": "h", "requests": [{"query": "a"}, {"tool": "calculator", "arguments": {}}]}
    },
    "a long refusal to run": {"refused": "x" * 100_000},
    "a count that few programs can read": end_of_cell(0, truncated=2**53 + 1),
    "a long hash": {"effect": {"cell": 0, "hash": "h" * 1000, "requests": [{"query": "a"}]}},
    "output that is not text": end_of_cell(0, output=["x"]),
    "a negative count": end_of_cell(0, truncated=-1),
    "an answer that is too long": end_of_cell(0, final="x" * 1_000_001),
    "another field": end_of_cell(0, metadata={}),
    "an unknown line": {"exec": "ls"},
    "a list": [],
}


@pytest.mark.parametrize("line", FORGED.values(), ids=FORGED)
async def test_a_forged_line_stops_the_cell_and_the_next_one_runs(line: Any) -> None:
    launcher, outside = ScriptedLauncher([forged(line)]), Outside()
    turn = interpreter(launcher)
    stopped = await turn.run(cell(), TOOLS, outside.perform)
    assert stopped.error is not None
    assert "was stopped" in stopped.error
    assert len(stopped.error) < 2000
    assert not launcher.open_children
    assert outside.performed == []
    assert await turn.run(cell("say fine"), TOOLS, outside.perform) == CellResult("fine")


@pytest.mark.parametrize("text", [b"{", b"{}", b"\xff", b"[" * 10**6, b'{"suspended": NaN}', b"9" * 10**6, b'{"a": {}, "a": {}}'])
async def test_a_line_that_is_not_json_stops_the_cell(text: bytes) -> None:
    launcher = ScriptedLauncher([lambda child: forged(Raw(child.request["token"].encode() + b" " + text + b"\n"))(child)])
    stopped = await interpreter(launcher).run(cell(), TOOLS, Outside().perform)
    assert stopped.error is not None
    assert "was stopped" in stopped.error


MILLIONS: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: b"[" + b"[]," * 10**6 + b"0]",
    "numbers": lambda: b"[" + b"1," * 10**6 + b"1]",
    "members": lambda: b"{" + b",".join(b'"%d":0' % number for number in range(10**6)) + b"}",
    "strings": lambda: b'["\\\\",' + b'"",' * 10**6 + b'"\\""]',
    "unclosed lists": lambda: b"[[0]," * 10**6,
}


@pytest.fixture
def objects_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the texts of which the interpreter reads the values."""
    read: list[str] = []

    def note(text: str, *, max_depth: int) -> dict[str, Json]:
        read.append(text)
        return read_object(text, max_depth=max_depth)

    monkeypatch.setattr(lines, "read_object", note)
    return read


@pytest.mark.parametrize("values", MILLIONS.values(), ids=MILLIONS)
async def test_a_line_of_a_million_values_is_refused_without_reading_it(
    values: Callable[[], bytes], objects_read: list[str]
) -> None:
    text = b' {"effect": {"cell": 0, "hash": "h", "requests": [{"tool": "calculator", "arguments": {"a": ' + values() + b"}}]}}\n"
    launcher = ScriptedLauncher([lambda child: forged(Raw(child.request["token"].encode() + text))(child)])
    stopped = await interpreter(launcher).run(cell(), TOOLS, Outside().perform)
    assert "too many values at once" in (stopped.error or "")
    assert len(objects_read) == 1


async def test_a_line_that_is_too_long_is_refused_without_reading_it(objects_read: list[str]) -> None:
    launcher = ScriptedLauncher([forged(end_of_cell(0, output="x" * MAX_LINE_BYTES))])
    stopped = await interpreter(launcher).run(cell(), TOOLS, Outside().perform)
    assert "wrote a line that is too long" in (stopped.error or "")
    assert len(objects_read) == 1


async def test_an_answer_of_code_that_has_no_final_stops_the_cell() -> None:
    launcher = ScriptedLauncher([forged(end_of_cell(0, final="forged"))])
    turn = interpreter(launcher)
    stopped = await turn.run(cell(queries=None), TOOLS, Outside().perform)
    assert (stopped.final, "wrote a line out of order" in (stopped.error or "")) == (None, True)
    assert await turn.run(cell("say fine", queries=None), TOOLS, Outside().perform) == CellResult("fine")


async def test_a_prompt_may_have_any_number_of_commas_brackets_and_quotes() -> None:
    prompts = [sign * (MAX_REQUEST_CHARS // 5) for sign in (",", "[", '"', "\\", "{")]
    effect = {"effect": {"cell": 0, "hash": "h", "requests": [{"query": prompt} for prompt in prompts]}}
    outside = Outside()
    await interpreter(ScriptedLauncher([forged(effect, end_of_cell(0))])).run(cell(), TOOLS, outside.perform)
    assert outside.performed == prompts


async def test_lines_without_the_token_change_nothing() -> None:
    line = b'{"cell": {"number": 0, "output": "forged", "error": null, "truncated": 0, "final": null, "exceeded": null}}\n'
    moves: list[Move] = [Raw(line), Raw(b"0" * 32 + b" " + line), Raw(b"\n"), end_of_cell(0, output="true")]
    turn = interpreter(ScriptedLauncher([forged(*moves)]))
    assert await turn.run(cell(), TOOLS, Outside().perform) == CellResult("true")


async def test_code_without_the_right_to_query_calls_no_model() -> None:
    outside = Outside()
    stopped = await interpreter(ScriptedLauncher()).run(cell("ask a", queries=None), TOOLS, outside.perform)
    assert stopped.error is not None
    assert outside.performed == []


@LIVE
async def test_the_waits_of_a_turn_are_bounded_also_over_cells_that_were_dropped(is_live: bool) -> None:
    launcher, outside = ScriptedLauncher(is_live=is_live), Outside()
    turn = interpreter(launcher, Limits(waits=5))
    await turn.run(cell("ask a"), TOOLS, outside.perform)
    await turn.run(cell("ask b", "ask c", "die"), TOOLS, outside.perform)
    await turn.run(cell("ask d"), TOOLS, outside.perform)
    assert launcher.starts[-1].request["limits"]["waits"] == 3
    await turn.run(cell(*(f"ask {number}" for number in range(9))), TOOLS, outside.perform)
    assert outside.performed == ["a", "b", "c", "d", "0"]


@LIVE
async def test_a_cell_that_acts_differently_when_run_again_is_dropped(is_live: bool) -> None:
    def diverge(_: ScriptedChild) -> Iterator[Move]:
        return iter([{"ready": {}}, end_of_cell(0), {"diverged": {"cell": 1}}, Die()])

    launcher, outside = ScriptedLauncher(is_live=is_live), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("set x"), TOOLS, outside.perform)
    await turn.run(cell("set y", "ask a"), TOOLS, outside.perform)
    if is_live:
        await turn.run(cell("die"), TOOLS, outside.perform)
    launcher.scripts.append(diverge)
    told = await turn.run(cell("say not run"), TOOLS, outside.perform)
    assert told.output == ""
    assert told.error is not None
    assert "cell 2 acted differently" in told.error
    assert (await turn.run(cell("get x", "get y"), TOOLS, outside.perform)).error == "NameError: y"
    assert outside.performed == ["a"]


async def test_a_cell_that_ends_its_child_only_when_run_again_is_dropped() -> None:
    launcher, outside = ScriptedLauncher(is_live=False), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("set x"), TOOLS, outside.perform)
    launcher.scripts += [lambda _: iter([{"ready": {}}, Die()])]
    told = await turn.run(cell("say new"), TOOLS, outside.perform)
    assert told.error is not None
    assert "cell 1" in told.error
    assert (await turn.run(cell("get x"), TOOLS, outside.perform)).error == "NameError: x"


async def test_wall_time_is_bounded_without_waits() -> None:
    async def perform(requests: Sequence[CodeRequest]) -> list[CallReply]:
        await asyncio.sleep(0.5)
        return [CallReply("late") for _ in requests]

    launcher = ScriptedLauncher()
    turn = interpreter(launcher, Limits(cell_wall=0.3))
    assert await turn.run(cell("ask a"), TOOLS, perform) == CellResult("late")
    stopped = await turn.run(cell("hang"), TOOLS, perform)
    assert stopped.error is not None
    assert "took longer than 0.3 s" in stopped.error
    assert not launcher.open_children


async def test_processor_time_is_bounded_per_cell_and_per_turn() -> None:
    launcher, outside = ScriptedLauncher(), Outside()
    turn = interpreter(launcher)
    errors = [(await turn.run(cell("spin 31"), TOOLS, outside.perform)).error or "" for _ in range(5)]
    assert all("30 s of processor time" in error for error in errors[:3])
    assert [child.request["limits"]["cpu_turn"] for child in launcher.starts] == [121, 90, 59, 28]
    assert "used up the processor time" in errors[3]
    assert "used up its processor time" in errors[4]
    assert len(launcher.starts) == 4


async def test_a_child_that_never_was_ready_is_not_the_fault_of_the_code() -> None:
    launcher = ScriptedLauncher([lambda _: iter([Die()]), lambda _: iter([end_of_cell(0)])])
    turn = interpreter(launcher)
    for _ in range(2):
        with pytest.raises(SandboxUnavailable):
            await turn.run(cell(), TOOLS, Outside().perform)
    assert not launcher.open_children
    assert await turn.run(cell("say fine"), TOOLS, Outside().perform) == CellResult("fine")


@LIVE
async def test_an_error_of_the_outside_ends_the_cell_and_the_child(is_live: bool) -> None:
    async def refuse(_: Sequence[CodeRequest]) -> list[CallReply]:
        raise BudgetExceeded("Enough.")

    launcher, outside = ScriptedLauncher(is_live=is_live), Outside()
    turn = interpreter(launcher)
    await turn.run(cell("set x"), TOOLS, outside.perform)
    with pytest.raises(BudgetExceeded):
        await turn.run(cell("ask a"), TOOLS, refuse)
    assert not launcher.open_children
    assert await turn.run(cell("get x"), TOOLS, outside.perform) == CellResult("")


@LIVE
async def test_a_run_cancelled_at_any_moment_leaves_no_child_and_no_slot(is_live: bool) -> None:
    for moment in range(1, 60):
        launcher, outside = ScriptedLauncher(is_live=is_live, slots=Slots(1)), Outside()
        turn = interpreter(launcher)
        await turn.run(cell("set x", "ask a"), TOOLS, outside.perform)
        task = asyncio.create_task(turn.run(cell("ask b", "ask c", "say done"), TOOLS, outside.perform))
        for _ in range(moment):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert not launcher.open_children
        assert launcher.slots.has_free("tenant")
        assert await turn.run(cell("get x", "say fine"), TOOLS, outside.perform) == CellResult("fine")
    else:
        pytest.fail("the run never ended")


async def test_others_compute_while_code_waits_for_the_outside() -> None:
    launcher, outside = ScriptedLauncher(slots=Slots(1)), Outside()
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def perform(requests: Sequence[CodeRequest]) -> list[CallReply]:
        asked.set()
        await may_answer.wait()
        return [CallReply("late") for _ in requests]

    waiting = asyncio.create_task(interpreter(launcher).run(cell("ask a"), TOOLS, perform))
    await asked.wait()
    assert await interpreter(launcher).run(cell("say fine"), TOOLS, outside.perform) == CellResult("fine")
    may_answer.set()
    assert await waiting == CellResult("late")


async def test_as_many_children_compute_at_a_time_as_there_are_slots() -> None:
    launcher, outside = ScriptedLauncher(slots=Slots(1)), Outside()
    computing = asyncio.create_task(interpreter(launcher).run(cell("hang"), TOOLS, outside.perform))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(interpreter(launcher).run(cell("say late"), TOOLS, outside.perform))
    await asyncio.sleep(0.05)
    assert len(launcher.starts) == 1
    computing.cancel()
    assert await waiting == CellResult("late")
    assert len(launcher.starts) == 2


async def test_cells_of_a_tenant_that_hang_do_not_delay_the_code_of_another() -> None:
    launcher, outside = ScriptedLauncher(slots=Slots(2)), Outside()
    cells = [asyncio.create_task(interpreter(launcher).run(cell("hang"), TOOLS, outside.perform)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert len(launcher.starts) == 2
    turn = interpreter(launcher, tenant_id="other")
    for _ in range(2):
        assert await turn.run(cell("say fine"), TOOLS, outside.perform) == CellResult("fine")
    assert not any(hanging.done() for hanging in cells)
    for hanging in cells:
        hanging.cancel()
    await asyncio.gather(*cells, return_exceptions=True)
    assert all(launcher.slots.has_free(tenant) for tenant in ("tenant", "other"))
