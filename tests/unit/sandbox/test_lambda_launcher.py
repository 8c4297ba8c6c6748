"""The launcher ``lambda``, over the function's own handler: every call to the outside starts the program again"""

import asyncio
import base64
import io
import json
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spass.aws.functions import InvokeResponse, LambdaFunction
from spass.core.code_calls import CallReply, CodeRequest
from spass.core.effects import Cell, CellResult, Queries
from spass.core.errors import InternalError, SandboxUnavailable
from spass.sandbox import function, lambda_
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.lambda_ import MAX_PAYLOAD, LambdaLauncher
from spass.sandbox.limits import LIMITS, Limits
from tests.unit.sandbox.forged_lines import WRITING
from tests.unit.sandbox.function_client import FunctionClient, answer, fail, lose_reply, refuse
from tests.unit.sandbox.scripted_children import Outside

pytestmark = pytest.mark.anyio

OWNER = "a" * 64


def open_turn(client: FunctionClient, limits: Limits = LIMITS) -> TurnInterpreter:
    return TurnInterpreter(LambdaLauncher(LambdaFunction("spass-code", lambda: client)), "tenant", OWNER, limits)


def cell(code: str, **values: Any) -> Cell:
    return Cell(code, queries=Queries(None, 0.3, 100, 100), **values)


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lambda_, "_THROTTLE_DELAYS", (0.001,) * 6)


async def test_cells_share_their_state_and_calls_are_performed_once() -> None:
    client, outside = FunctionClient(), Outside()
    turn = open_turn(client)
    first = await turn.run(cell("x = llm_query('one') + llm_query('two')"), (), outside.perform)
    second = await turn.run(cell("print(x, llm_batch(['three', 'four']))"), (), outside.perform)
    await turn.close()
    assert (first.error, second) == (None, CellResult("ONETWO ['THREE', 'FOUR']\n"))
    assert outside.performed == ["one", "two", "three", "four"]
    assert len(client.invoked) == 3 + 2


async def test_each_invocation_names_the_owner_of_the_code() -> None:
    client = FunctionClient()
    await open_turn(client).run(cell("1"), (), Outside().perform)
    assert client.invoked == [("spass-code", OWNER)]


async def test_variables_of_4_mib_fit_into_an_invocation() -> None:
    hardly_compressible = base64.b85encode(random.Random(5).randbytes(3 * 2**20)).decode()
    client = FunctionClient()
    first = await open_turn(client).run(
        cell("print(len(context), hash(context) == hash(context))", variables={"context": hardly_compressible}),
        (),
        Outside().perform,
    )
    assert first == CellResult(f"{len(hardly_compressible)} True\n")
    assert len(client.payloads[0]) < MAX_PAYLOAD


async def test_a_program_that_does_not_fit_is_an_error_that_the_model_reads() -> None:
    async def perform(requests: Sequence[CodeRequest]) -> list[CallReply]:
        return [CallReply(random.Random(len(str(request))).randbytes(2**20).hex()) for request in requests]

    client = FunctionClient()
    turn = open_turn(client)
    stopped = await turn.run(cell("x = llm_batch(['a' * n for n in range(1, 9)])"), (), perform)
    assert stopped.error is not None
    assert "6 MB" in stopped.error
    assert await turn.run(cell("print(1)"), (), perform) == CellResult("1\n")


@pytest.mark.usefixtures("no_delays")
@pytest.mark.parametrize("code", ["TooManyRequestsException", "EC2ThrottledException", "ResourceConflictException"])
async def test_throttled_invocations_are_tried_again(code: str) -> None:
    client, outside = FunctionClient(faults=[refuse(code, 429)] * 6), Outside()
    assert await open_turn(client).run(cell("print(1)"), (), outside.perform) == CellResult("1\n")
    assert len(client.invoked) == 7


@pytest.mark.usefixtures("no_delays")
async def test_lambda_that_throttles_for_too_long_is_no_sandbox() -> None:
    client, outside = FunctionClient(faults=[refuse("TooManyRequestsException", 429)] * 7), Outside()
    turn = open_turn(client)
    with pytest.raises(SandboxUnavailable) as caught:
        await turn.run(cell("print(1)"), (), outside.perform)
    assert caught.value.retry_after
    assert await turn.run(cell("print(2)"), (), outside.perform) == CellResult("2\n")


@pytest.mark.parametrize("fault", [lose_reply, refuse("ServiceException", 500)])
async def test_a_lost_reply_is_asked_for_once_more_and_nothing_is_performed_twice(fault: Any) -> None:
    client, outside = FunctionClient(), Outside()
    turn = open_turn(client)
    for place in range(3):
        client.faults = [FunctionClient.run] * place + [fault]
        result = await turn.run(cell(f"print(llm_query('a{place}') + llm_query('b{place}'))"), (), outside.perform)
        assert result == CellResult(f"A{place}B{place}\n")
    assert outside.performed == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_a_wrong_deployment_is_our_error() -> None:
    for code in ("AccessDeniedException", "ResourceNotFoundException", "InvalidParameterValueException"):
        with pytest.raises(InternalError, match=code):
            await open_turn(FunctionClient(faults=[refuse(code, 400)])).run(cell("1"), (), Outside().perform)


@pytest.mark.parametrize(
    ("kind", "message", "fault"),
    [
        ("Sandbox.Timedout", "", "took too long"),
        (None, "2027-01-01T00:00:00Z 1 Task timed out after 300.00 seconds", "took too long"),
        ("Runtime.ExitError", "RequestId: 1 Error: Runtime exited with error: signal: killed", "too much memory"),
        ("Function.ResponseSizeTooLarge", "", "wrote too much"),
    ],
)
async def test_a_function_that_the_code_ended_is_an_error_of_the_code(kind: str | None, message: str, fault: str) -> None:
    client = FunctionClient()
    turn = open_turn(client)
    await turn.run(cell("x = 1"), (), Outside().perform)
    client.faults = [fail(kind, message)]
    stopped = await turn.run(cell("x = 2"), (), Outside().perform)
    assert fault in (stopped.error or "")
    assert await turn.run(cell("print(x)"), (), Outside().perform) == CellResult("1\n")


def packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


MALFORMED: list[Callable[[], object]] = [
    *(lambda: b"", lambda: b"null", lambda: b"[]", lambda: b"{}"),
    lambda: {"lines": 5, "cpu": 0, "fault": None},
    lambda: {"lines": "?", "cpu": 0, "fault": None},
    lambda: {"lines": packed(b"x"), "cpu": -1, "fault": None},
    lambda: {"lines": packed(b"x"), "cpu": "1e999", "fault": None},
    lambda: {"lines": packed(b"x")[:-8], "cpu": 0, "fault": None},
    lambda: {"lines": "", "cpu": 0, "fault": None},
    lambda: {"lines": packed(b"x" * (2**26 + 1)), "cpu": 0, "fault": None},
    lambda: {"lines": packed(b"\n" * 10**6), "cpu": 0, "fault": None},
]
FAILED = ["Runtime.ImportModuleError", "Runtime.HandlerNotFound", "KeyError", None]
FAULTS: list[Callable[[], list[Any]]] = [
    *([lambda make=make: [answer(make())] for make in MALFORMED]),
    *([lambda kind=kind: [fail(kind)] for kind in FAILED]),
    lambda: [lose_reply] * 2,
    lambda: [refuse("ServiceException", 500)] * 2,
]


@pytest.mark.parametrize("faults", FAULTS, ids=range(len(FAULTS)))
async def test_a_lost_malformed_or_failed_answer_of_the_function_is_no_sandbox(faults: Callable[[], list[Any]]) -> None:
    with pytest.raises(SandboxUnavailable):
        await open_turn(FunctionClient(faults=faults())).run(cell("1"), (), Outside().perform)


async def test_millions_of_lines_of_a_child_do_not_fill_the_memory_of_the_gateway() -> None:
    client = FunctionClient()
    turn = open_turn(client)
    await turn.run(cell("x = 1"), (), Outside().perform)
    code = """
import os
for descriptor in range(3, 9):
    try:
        for _ in range(32):
            os.write(descriptor, b"\\n" * 2**20)
    except OSError:
        pass
"""
    tracemalloc.start()
    try:
        stopped = await turn.run(cell(code), (), Outside().perform)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "wrote too much" in (stopped.error or "")
    assert 2**25 < peak < 2**27
    assert await turn.run(cell("print(x)"), (), Outside().perform) == CellResult("1\n")


async def test_code_that_uses_too_much_processor_time_is_stopped_in_the_function() -> None:
    client = FunctionClient()
    turn = open_turn(client, Limits(cell_cpu=1))
    await turn.run(cell("x = 1"), (), Outside().perform)
    stopped = await turn.run(cell("while True: pass"), (), Outside().perform)
    assert "used more than 1 s of processor time" in (stopped.error or "")
    assert await turn.run(cell("print(x)"), (), Outside().perform) == CellResult("1\n")


SPIN = """
import resource
def spin(seconds):
    began = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    while sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - began < seconds:
        pass
"""


@dataclass
class Answers:
    """Why the function stopped the code of each invocation."""

    faults: list[str | None] = field(default_factory=list)

    def keep(self, client: FunctionClient, payload: bytes) -> InvokeResponse:
        """Run the function and note its answer."""
        text = client.run(payload)["Payload"].read()
        self.faults.append(json.loads(text)["fault"])
        return {"Payload": io.BytesIO(text)}


@pytest.mark.parametrize(
    "line",
    ["b'x' + token + b' {\"cell\"'", "b'\\n' + token + b' {\"cell\": {}}\\n'", "b'\\n' + token + b' {\"effect\": {}}\\n'"],
    ids=["anywhere", "at the start of a line", "of a call"],
)
async def test_forged_lines_do_not_lengthen_the_time_of_a_cell(line: str) -> None:
    answers = Answers()
    turn = open_turn(FunctionClient(faults=[answers.keep]), Limits(cell_cpu=1, turn_cpu=5))
    code = f"{WRITING}while True:\n    os.write(pipe, {line})\n    for _ in range(10**6): pass"
    assert (await turn.run(cell(code), (), Outside().perform)).error
    assert answers.faults == ["used more than 1 s of processor time"]


async def test_each_cell_of_a_program_that_is_run_again_has_its_own_time() -> None:
    answers, outside = Answers(), Outside()
    client = FunctionClient(faults=[answers.keep] * 5)
    turn = open_turn(client, Limits(cell_cpu=1, turn_cpu=60))
    for number in range(3):
        assert await turn.run(cell(f"{SPIN}spin(0.6)\nx = {number}"), (), outside.perform) == CellResult("")
    assert await turn.run(cell("print(x)"), (), outside.perform) == CellResult("2\n")
    forged = f"{WRITING}while True:\n    os.write(pipe, b'\\n' + token + b' {{\"cell\"')\n    for _ in range(10**6): pass"
    assert (await turn.run(cell(forged), (), outside.perform)).error
    assert answers.faults == [None] * 4 + ["used more than 1 s of processor time"]


async def test_code_that_waits_for_ever_is_stopped_in_the_function() -> None:
    turn = open_turn(FunctionClient(), Limits(cell_wall=1))
    stopped = await turn.run(cell("import os\nos.read(os.pipe()[0], 1)"), (), Outside().perform)
    assert "took longer than 1 s" in (stopped.error or "")
    in_time = open_turn(FunctionClient(seconds=4))
    assert "took longer than" in (
        (await in_time.run(cell("import os\nos.read(os.pipe()[0], 1)"), (), Outside().perform)).error or ""
    )


async def test_processor_time_of_replays_counts_for_the_turn() -> None:
    client, outside = FunctionClient(), Outside()
    turn = open_turn(client, Limits(turn_cpu=1.0, cell_cpu=5))
    work = "x = 0\nfor n in range(2_000_000): x += n\nllm_query('a')"
    errors = [(await turn.run(cell(work), (), outside.perform)).error for _ in range(12)]
    assert any("processor time" in (error or "") for error in errors)
    assert "used up its processor time" in (errors[-1] or "")
    assert len(client.invoked) < 20


async def test_a_child_that_the_kernel_ends_has_used_up_its_processor_time() -> None:
    turn = open_turn(FunctionClient(), Limits(turn_cpu=0.5, cell_cpu=5))
    stopped = await turn.run(cell(f"{SPIN}spin(60)"), (), Outside().perform)
    assert "used up the processor time of its turn" in (stopped.error or "")


async def test_a_program_without_processor_time_is_not_started_again() -> None:
    client, outside = FunctionClient(), Outside()
    turn = open_turn(client, Limits(turn_cpu=0.5, cell_cpu=5))
    stopped = await turn.run(cell(f"{SPIN}spin(0.7)\nllm_query('a')\nllm_query('b')"), (), outside.perform)
    assert "used up the processor time of its turn" in (stopped.error or "")
    assert (len(client.invoked), outside.performed) == (1, ["a"])


async def test_a_cancelled_run_does_not_wait_for_the_function() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(_: FunctionClient, __: bytes) -> InvokeResponse:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
        return fail("Sandbox.Timedout")(_, __)

    task = asyncio.create_task(open_turn(FunctionClient(faults=[hang])).run(cell("1"), (), Outside().perform))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()


async def test_an_event_without_a_start_starts_no_child() -> None:
    response = FunctionClient().run(b"{}")
    assert json.loads(response["Payload"].read()) == {}


async def test_code_does_not_see_what_a_killed_invocation_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "_LAMBDA_FOLDER", str(Path(function.__file__).parent))
    monkeypatch.setattr(function, "_LAMBDA_TEMPORARY", str(tmp_path))
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "file").write_text("of the turn before")

    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 100_000

    def run_here(_: FunctionClient, payload: bytes) -> InvokeResponse:
        return {"Payload": io.BytesIO(json.dumps(function.handler(json.loads(payload), Context())).encode())}

    client = FunctionClient(faults=[run_here])
    code = "import os\nprint(os.path.exists('../left'), os.path.exists('.'))"
    assert await open_turn(client).run(cell(code), (), Outside().perform) == CellResult("False True\n")


async def test_nothing_is_left_of_what_code_wrote(tmp_path: Path) -> None:
    client = FunctionClient(environment={"TMPDIR": str(tmp_path)})
    code = """
import os
for n in range(1100):
    os.mkdir("d" * 200)
    open("file", "w").close()
    os.chmod("file", 0)
    os.chdir("d" * 200)
os.chmod(".", 0)
print("deep")
"""
    assert await open_turn(client).run(cell(code), (), Outside().perform) == CellResult("deep\n")
    assert not os.listdir(tmp_path)  # noqa: PTH208
