"""A program reads one request and writes one answer. However it ends, nothing of it is left, and no secret is in the error."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spass.core.messages import Json
from spass.redaction.text import reload_environment
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.program import ChildTimedOut, run_child
from spass.sandbox.program_answer import OUTPUT_END, OUTPUT_START
from tests.unit.calls.planted_secrets import BATCHES, leaked_kinds, set_credentials, text_with_secrets
from tests.unit.sandbox.process_list import wait_for_processes

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _environment_of_each_test() -> Iterator[None]:
    yield
    reload_environment()


ANSWER = f"""
import json
def answer(value):
    print({OUTPUT_START!r}, json.dumps(value), {OUTPUT_END!r}, sep="\\n", flush=True)
"""
CHILD = """
import os, subprocess, sys, time
def start(mark, **options):
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", mark], **options)
"""


async def run(
    code: str, request: Mapping[str, Json] | None = None, *, folder: Path = Path("/"), **options: Any
) -> Mapping[str, Json]:
    options = {"timeout": 20, "environment": {}, **options}
    return await run_child([sys.executable, "-S", "-c", ANSWER + CHILD + code], request or {}, folder=folder, **options)


async def test_the_answer_is_the_object_between_the_marked_lines() -> None:
    code = "request = json.loads(sys.stdin.readline())\nprint('noise')\nanswer({'got': request, 'rest': sys.stdin.read()})"
    assert await run(code, {"a": "ä\n\u2028", "b": [1, None]}) == {"got": {"a": "ä\n\u2028", "b": [1, None]}, "rest": ""}


async def test_a_program_has_the_given_environment_and_folder_and_its_own_group(tmp_path: Path) -> None:
    code = "answer({'env': sorted(os.environ), 'cwd': os.getcwd(), 'leads': os.getpgid(0) == os.getpid(),"
    code += "'fds': os.listdir('/dev/fd')})"
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    try:
        got = dict(await run(code, folder=tmp_path, environment={"KEY": "1", "LC_CTYPE": "C.UTF-8"}))
    finally:
        os.close(reader)
        os.close(writer)
    fds = got.pop("fds")
    assert got == {"env": ["KEY", "LC_CTYPE"], "cwd": os.path.realpath(tmp_path), "leads": True}  # noqa: ASYNC240
    assert isinstance(fds, list)
    assert len(fds) == 4, "the pipes and the list's own"


async def test_an_answer_of_megabytes_in_pieces_arrives_whole() -> None:
    code = "request = json.loads(sys.stdin.readline())\nsys.stderr.write('x' * 10**6)\nanswer(request)"
    request: dict[str, Json] = {"text": "äb" * 2_000_000}
    assert await run(code, request) == request


async def test_a_start_without_an_end_before_the_answer_is_noise() -> None:
    assert await run(f"print({OUTPUT_START!r})\nanswer({{'a': 1}})\nprint()") == {"a": 1}


PAIR = "answer({'a': 1})\n"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("print('hi')", "wrote no answer"),
        ("", "wrote no answer"),
        (PAIR * 2, "wrote two answers"),
        (PAIR + "print('more')", "wrote more after its answer"),
        (f"print({OUTPUT_START!r}); print('{{}}')", "wrote the start of an answer without its end"),
        (f"print('{{}}'); print({OUTPUT_END!r})", "wrote the end of an answer without its start"),
        ("answer([1])", "wrote an answer that is not a valid JSON object"),
        ("answer(float('nan'))", "wrote an answer that is not a valid JSON object"),
        (f"print({OUTPUT_START!r}, '['*10**6, {OUTPUT_END!r}, sep='\\n')", "wrote an answer that is not a valid JSON object"),
        (PAIR + "sys.exit(1)", "ended with exit code 1"),
        ("print('x', file=sys.stderr); sys.exit(3)", "ended with exit code 3: x"),
        ("raise KeyError('no such thing')", "ended with exit code 1: KeyError: 'no such thing'"),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("os.kill(os.getppid(), 0); os.abort()", "was killed by signal 6"),
    ],
)
async def test_a_program_that_writes_anything_but_one_answer_fails_with_one_error(code: str, fault: str) -> None:
    with pytest.raises(ChildFailed) as failure:
        await run(code)
    assert str(failure.value) == fault


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("end", ["", "\\n"])
async def test_a_program_that_writes_100_mb_is_killed(stream: str, end: str) -> None:
    mark = uuid4().hex
    code = f"{mark!r}\nwhile True: sys.{stream}.write('x' * 10**6 + '{end}')"
    with pytest.raises(ChildFailed) as failure:
        await run(code, timeout=60)
    assert "wrote 100 MB, which is too much" in str(failure.value)
    await asyncio.to_thread(wait_for_processes, mark, 0)


async def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    for command, folder in (
        ([str(tmp_path / "absent")], tmp_path),
        ([sys.executable], tmp_path / "absent"),
        (["a\0b"], tmp_path),
    ):
        with pytest.raises(ChildFailed, match="could not be started"):
            await run_child(command, {}, environment={}, folder=folder, timeout=5)


async def test_a_program_that_reads_nothing_of_a_large_request_may_answer() -> None:
    assert await run("answer({})", {"text": "x" * 5_000_000}) == {}


@pytest.mark.parametrize("grace", [0, 5])
async def test_a_timeout_kills_the_whole_group(grace: float) -> None:
    mark = uuid4().hex
    with pytest.raises(ChildTimedOut, match="did not end within 1 seconds"):
        await run(f"start({mark!r}); start({mark!r}); time.sleep(60)", timeout=1, grace=grace)
    await asyncio.to_thread(wait_for_processes, mark, 0)


async def test_a_program_that_ignores_the_request_to_end_is_killed() -> None:
    mark = uuid4().hex
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); start({mark!r}); time.sleep(60)"
    with pytest.raises(ChildTimedOut):
        await run(code, timeout=1, grace=0.2)
    await asyncio.to_thread(wait_for_processes, mark, 0)


async def test_a_cancelled_run_leaves_no_process() -> None:
    mark = uuid4().hex
    task = asyncio.create_task(run(f"start({mark!r}); time.sleep(60)"))
    await asyncio.to_thread(wait_for_processes, mark, 2, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for_processes, mark, 0)


@pytest.mark.parametrize("code", ["answer({})", "sys.exit(1)"])
async def test_processes_that_outlive_the_program_are_killed(code: str) -> None:
    mark = uuid4().hex
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    if code == "sys.exit(1)":
        with pytest.raises(ChildFailed):
            await run(f"start({mark!r}, {quiet})\n{code}")
    else:
        await run(f"start({mark!r}, {quiet})\n{code}")
    await asyncio.to_thread(wait_for_processes, mark, 0)


@pytest.mark.parametrize("batch", BATCHES)
async def test_no_secret_that_a_program_prints_is_in_the_error(batch: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)
    reload_environment()
    text = text_with_secrets(batch)
    secrets = ["a-key-of-the-7th-provider", "token-of-a-tenant", "hunter22"]
    code = f"sys.stderr.write(sys.stdin.readline() and {text + ' hunter22 the end'!r}); sys.exit(1)"
    with pytest.raises(ChildFailed) as failure:
        await run(code, secrets=secrets)
    assert not leaked_kinds(str(failure.value), batch)
    assert "hunter22" not in str(failure.value)
    assert str(failure.value).endswith("the end")


async def test_a_secret_that_the_bound_of_stderr_cuts_is_not_in_the_error() -> None:
    key = "0123456789abcdef" * 4
    for shift in range(0, 80, 13):
        code = f"sys.stderr.write('y' * 20000 + ' ' + {key!r} + ' ' * {shift} + 'z' * (16384 - 60)); sys.exit(1)"
        with pytest.raises(ChildFailed) as failure:
            await run(code, secrets=[key])
        assert key[-16:] not in str(failure.value)


def test_runs_need_no_watcher_and_work_in_any_thread() -> None:
    answers: list[Mapping[str, Json]] = []
    threads = [threading.Thread(target=lambda: answers.append(asyncio.run(run("answer({'a': 1})")))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"a": 1}] * 3
