"""A container gets exact arguments and one line of JSON, and answers. However it ends, it is removed and no secret is told."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from spass.sandbox import ContainerFailed, ContainerRunner, ContainerTimedOut, MountRefused
from spass.sandbox.container_pipe import ContainerUnavailable
from spass.sandbox.orphans import new_name
from tests.recording_runtime import RecordingRuntime
from tests.unit.calls.planted_secrets import BATCHES, leaked_kinds, text_with_secrets
from tests.unit.sandbox.process_list import processes_with, wait_for_processes

pytestmark = pytest.mark.anyio

START: Final = "---SPASS_OUTPUT_START---"
END: Final = "---SPASS_OUTPUT_END---"
EFFECT: Final = "---SPASS_EFFECT---"
PRELUDE: Final = f"""
import json, os, sys, time
def say(*lines): print(*lines, sep="\\n", flush=True)
def answer(value): say({START!r}, json.dumps(value), {END!r})
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingRuntime]:
    folder = tmp_path / "runtime"
    folder.mkdir()
    runtime = RecordingRuntime(folder)
    monkeypatch.setenv("PATH", runtime.path)
    yield runtime
    assert runtime.running == set(), "every container is removed"


def contain(runtime: RecordingRuntime, code: str) -> None:
    runtime.contain(PRELUDE + code)


def test_the_defaults_are_those_of_the_page() -> None:
    defaults = {field.name: field.default for field in fields(ContainerRunner) if field.init}
    assert defaults == {
        "image": "spass-sandbox:latest",
        "timeout": 300,
        "mount_allowlist_path": "",
        "max_concurrent": 5,
        "runtime": "docker",
    }


async def test_the_arguments_are_exactly_those_of_the_page(runtime: RecordingRuntime, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    contain(runtime, "answer({'arguments': sys.argv[2:], 'stdin': sys.stdin.read()})")
    answer = await ContainerRunner().run(
        {"prompt": "Sum"}, workspace="/work", mounts=[str(data)], secrets={"KEY": "ä secret\n\u2028"}
    )
    [call] = runtime.runs
    name = call.arguments[4]
    assert re.fullmatch(r"spass-[0-9a-f]{8}-\d+-\d+-[0-9a-f]{16}", name)
    assert list(call.arguments) == [
        *("run", "--rm", "-i", "--name", name, "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--pids-limit", "256", "--memory", "1g", "-w", "/work"),
        *("-v", f"{data}:{data}:ro", "spass-sandbox:latest"),
    ]
    stdin = str(answer["stdin"])
    assert stdin.count("\n") == 1
    assert len(stdin.splitlines()) == 1, "for every reader"
    assert json.loads(stdin) == {"prompt": "Sum", "workspace": "/work", "secrets": {"KEY": "ä secret\n\u2028"}}


async def test_without_options_no_option_is_given(runtime: RecordingRuntime) -> None:
    contain(runtime, "answer({})")
    assert await ContainerRunner(image="other/image:1").run({"prompt": "x"}) == {}
    [call] = runtime.runs
    assert call.arguments[-3:] == ["--memory", "1g", "other/image:1"]
    assert "-e" not in call.arguments


async def test_no_secret_is_in_an_argument_or_the_environment(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:hidden-password@proxy")
    monkeypatch.setenv("SPASS_ADMIN_TOKEN", "hidden-token")
    contain(runtime, "answer({})")
    secrets = {f"KEY{number}": text_with_secrets(batch) for number, batch in enumerate(BATCHES)}
    await ContainerRunner().run({"prompt": "x"}, secrets=secrets)
    for call in runtime.calls:
        text = json.dumps([call.arguments, dict(call.environment)])
        assert "hidden" not in text
        assert not any(leaked_kinds(text, batch) for batch in BATCHES)


async def test_noise_before_the_answer_and_an_answer_of_lines_are_read(runtime: RecordingRuntime) -> None:
    contain(runtime, f"say('noise', '', {START!r}, 'half', {START!r}, '{{', '\"content\": \"a\"', '}}', {END!r}, '')")
    assert await ContainerRunner().run({"prompt": "x"}) == {"content": "a"}


BAD_PROGRAMS: Final = {
    "pass": "wrote no answer",
    "say('text')": "wrote no answer",
    f"say({START!r}, '{{}}')": "without its end",
    f"say({END!r})": "without its start",
    f"say({START!r}, 'nothing', {END!r})": "not a valid JSON object",
    f"say({START!r}, '[' * 100000, {END!r})": "not a valid JSON object",
    f"say({START!r}, '{{}} {{}}', {END!r})": "not a valid JSON object",
    "answer({}); answer({})": "wrote two answers",
    "answer({}); say('more')": "more after its answer",
    f"answer({{}}); say({EFFECT + ' {}'!r})": "more after its answer",
    f"say({EFFECT + ' {'!r})": "an effect that is not a valid JSON object",
    f"say({EFFECT + ' []'!r})": "an effect that is not a valid JSON object",
    f"say({EFFECT + ' {}'!r}); time.sleep(60)": "asked for an effect",
    "os.write(1, b'x' * 2**20)\nfor _ in range(100): os.write(1, b'x' * 2**20)": "wrote 100 MB",
    "for _ in range(101): os.write(1, b'x\\n' * 2**19)": "wrote more than 200000 lines",
    "answer({}); sys.exit(3)": "exit code 3",
    "os.kill(os.getpid(), 9)": "exit code 137",
    "os.close(1); os.close(2); time.sleep(60)": "took longer than 3 seconds",
}


@pytest.mark.parametrize("code", BAD_PROGRAMS)
async def test_a_bad_program_is_one_clear_error(runtime: RecordingRuntime, code: str) -> None:
    contain(runtime, code)
    with pytest.raises(ContainerFailed, match=re.escape(BAD_PROGRAMS[code])) as caught:
        await ContainerRunner(timeout=3).run({"prompt": "x"})
    assert len(str(caught.value)) < 800
    assert len(runtime.runs) == 1, "it is not started again"


async def test_a_runtime_that_starts_no_container_is_told_once_and_with_advice(runtime: RecordingRuntime) -> None:
    contain(runtime, "print('No such image.', file=sys.stderr); sys.exit(125)")
    with pytest.raises(ContainerUnavailable) as caught:
        await ContainerRunner().run({"prompt": "x"})
    message = str(caught.value)
    assert message.startswith("The container ended with exit code 125: No such image. Check that `docker info` works")
    assert message.count("No such image") == 1
    assert "`make sandbox-image`" in message


@pytest.mark.parametrize("batch", BATCHES)
async def test_the_error_of_a_container_has_its_last_words_without_secrets(
    runtime: RecordingRuntime, batch: Mapping[str, str]
) -> None:
    contain(runtime, "sys.stderr.write(json.loads(sys.stdin.readline())['secrets']['KEY'] + '\\nTable not found'); sys.exit(1)")
    with pytest.raises(ContainerFailed) as caught:
        await ContainerRunner().run({"prompt": "x"}, secrets={"KEY": text_with_secrets(batch)})
    assert "exit code 1" in str(caught.value)
    assert not leaked_kinds(str(caught.value), batch)


async def test_a_container_that_takes_too_long_is_removed(runtime: RecordingRuntime) -> None:
    contain(runtime, "time.sleep(60)")
    with pytest.raises(ContainerTimedOut, match="took longer than 1 seconds"):
        await ContainerRunner(timeout=1).run({"prompt": "x"})
    wait_for_processes(str(runtime.program.parent), 0)


async def test_a_container_ends_in_time_also_while_nobody_listens_to_it(runtime: RecordingRuntime) -> None:
    contain(runtime, f"say({EFFECT + ' {}'!r}); time.sleep(60)")
    async with ContainerRunner(timeout=1).open({"prompt": "x"}, tenant_id="") as container:
        await container.receive()
        while runtime.running:
            await asyncio.sleep(0.05)
        with pytest.raises(ContainerTimedOut):
            await container.receive()


async def test_a_cancelled_run_leaves_no_container(runtime: RecordingRuntime) -> None:
    contain(runtime, "time.sleep(60)")
    task = asyncio.create_task(ContainerRunner().run({"prompt": "x"}))
    while not runtime.running:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runtime.running == set()
    assert processes_with(str(runtime.program.parent)) == []


async def test_a_second_cancellation_does_not_stop_the_removal(runtime: RecordingRuntime) -> None:
    contain(runtime, "time.sleep(60)")
    task = asyncio.create_task(ContainerRunner().run({"prompt": "x"}))
    while not runtime.running:
        await asyncio.sleep(0.02)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    while runtime.running:
        await asyncio.sleep(0.02)


async def test_effects_and_results_travel_as_lines(runtime: RecordingRuntime) -> None:
    contain(
        runtime,
        f"""
sys.stdin.readline()
total = 0
for number in range(3):
    say({EFFECT!r} + " " + json.dumps({{"number": number}}))
    total += json.loads(sys.stdin.readline())["value"]
answer({{"total": total, "rest": sys.stdin.read()}})
""",
    )
    async with ContainerRunner().open({"prompt": "x"}, tenant_id="") as container:
        for number in range(3):
            message = await container.receive()
            assert getattr(message, "effect", None) == {"number": number}
            container.send({"value": number * 10})
        container.end_input()
        message = await container.receive()
        assert getattr(message, "answer", None) == {"total": 30, "rest": ""}


async def test_six_runs_at_once_never_have_six_containers(runtime: RecordingRuntime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    contain(runtime, f"f = open({str(log)!r}, 'ab', 0); f.write(b'+'); time.sleep(0.2); f.write(b'-'); answer({{}})")
    runner = ContainerRunner(max_concurrent=2)
    await asyncio.gather(*(runner.run({"prompt": "x"}) for _ in range(6)))
    running = [log.read_text()[:end].count("+") - log.read_text()[:end].count("-") for end in range(13)]
    assert max(running) == 2


def test_the_limit_also_holds_in_two_event_loops(runtime: RecordingRuntime, tmp_path: Path) -> None:
    from threading import Thread

    log = tmp_path / "log"
    contain(runtime, f"f = open({str(log)!r}, 'ab', 0); f.write(b'+'); time.sleep(0.1); f.write(b'-'); answer({{}})")
    runner = ContainerRunner(max_concurrent=1)

    async def run_twice() -> None:
        await asyncio.gather(*(runner.run({"prompt": "x"}) for _ in range(2)))

    threads = [Thread(target=lambda: asyncio.run(run_twice())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.read_text() == "+-" * 4


async def test_a_run_that_waits_too_long_for_a_place_says_so(runtime: RecordingRuntime) -> None:
    contain(runtime, "time.sleep(60)")
    runner = ContainerRunner(max_concurrent=1, timeout=0.4)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(runner.open({"prompt": "x"}, tenant_id=""))
        with pytest.raises(ContainerTimedOut, match="No container became free: 1 are running"):
            await runner.run({"prompt": "y"})
    assert len(runtime.runs) == 1


async def test_a_container_of_another_tenant_starts_while_one_tenant_has_all(runtime: RecordingRuntime) -> None:
    contain(runtime, "answer({}) if sys.stdin.read() else None")
    runner = ContainerRunner(max_concurrent=1, timeout=20)
    async with runner.open({"prompt": "x"}, tenant_id="busy") as container:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), runner.open({"prompt": "y"}, tenant_id="busy"):
                pass
        async with runner.open({"prompt": "z"}, tenant_id="other") as other:
            other.end_input()
            await other.receive()
        container.end_input()
        await container.receive()
    assert len(runtime.runs) == 2


async def test_a_cancelled_wait_takes_no_place(runtime: RecordingRuntime) -> None:
    contain(runtime, "answer({}) if sys.stdin.read() else None")
    runner = ContainerRunner(max_concurrent=1)
    async with runner.open({"prompt": "x"}, tenant_id="") as container:
        waiting = [asyncio.create_task(runner.run({"prompt": str(number)})) for number in range(3)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        container.end_input()
        await container.receive()
    _, *others = await asyncio.gather(*waiting, return_exceptions=True)
    assert others == [{}, {}]
    assert waiting[0].cancelled()


async def test_a_missing_runtime_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match=r"'no-such-runtime' is not on the PATH\. Install docker or podman"):
        await ContainerRunner(runtime="no-such-runtime").run({"prompt": "x"})


async def test_a_runtime_that_cannot_be_executed_is_a_runtime_error(runtime: RecordingRuntime) -> None:
    runtime.program.write_text("#!/no/such/interpreter\n")
    with pytest.raises(RuntimeError, match="could not be started"):
        await ContainerRunner().run({"prompt": "x"})


@pytest.mark.parametrize("image", ["", "-v", "--privileged", "a b", "a\nb", " image"])
def test_a_name_that_is_not_an_image_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an image"):
        ContainerRunner(image=image)


@pytest.mark.parametrize("workspace", ["work", "../work", "/a\nb", "-v", "/a\0"])
async def test_a_workspace_that_is_not_an_absolute_path_is_refused(runtime: RecordingRuntime, workspace: str) -> None:
    with pytest.raises(ValueError, match="must be an absolute path"):
        await ContainerRunner().run({"prompt": "x"}, workspace=workspace)
    assert runtime.calls == []


async def test_a_refused_mount_or_allow_list_starts_nothing(runtime: RecordingRuntime, tmp_path: Path) -> None:
    broken = tmp_path / "allow.json"
    broken.write_text("{")
    with pytest.raises(MountRefused, match="cannot be mounted"):
        await ContainerRunner().run({"prompt": "x"}, mounts=["/"])
    with pytest.raises(MountRefused, match=r"allow\.json"):
        await ContainerRunner(mount_allowlist_path=str(broken)).run({"prompt": "x"})
    assert runtime.calls == []


async def test_a_path_that_changes_after_the_check_is_not_used(
    runtime: RecordingRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path becomes a link while the container waits for its place."""
    data, secret = tmp_path / "data", tmp_path / "secret"
    data.mkdir()
    secret.mkdir()
    contain(runtime, "answer({}) if sys.stdin.read() else None")
    runner = ContainerRunner(max_concurrent=1)
    async with runner.open({"prompt": "x"}, tenant_id="") as container:
        second = asyncio.create_task(runner.run({"prompt": "y"}, mounts=[str(data)]))
        await asyncio.sleep(0.05)
        data.rename(tmp_path / "moved")
        data.symlink_to(secret)
        container.end_input()
        await container.receive()
    with pytest.raises(MountRefused, match="changed while it was being mounted"):
        await second
    assert len(runtime.runs) == 1


def name_of_an_ended_process() -> str:
    code = "import sys; sys.path[:0] = sys.argv[1:]; from spass.sandbox.orphans import new_name; print(new_name())"
    return subprocess.run([sys.executable, "-c", code, *sys.path], capture_output=True, text=True, check=True).stdout.strip()


async def test_the_next_start_removes_containers_whose_process_is_gone(runtime: RecordingRuntime) -> None:
    orphan = name_of_an_ended_process()
    living, other_machine = new_name(), re.sub("-[0-9a-f]{8}-", "-00000000-", orphan, count=1)
    kept = {living, other_machine, "spass-postgres", "database", f"{orphan}-copy"}
    for name in (orphan, *kept):
        runtime.add_container(name)
    contain(runtime, "answer({})")
    await ContainerRunner().run({"prompt": "x"})
    assert runtime.running == kept
    for name in kept:
        (runtime.program.parent / "running" / name).unlink()


async def test_a_container_of_an_earlier_process_with_our_number_is_an_orphan(runtime: RecordingRuntime) -> None:
    host, process, start, rest = new_name().removeprefix("spass-").split("-")
    runtime.add_container(f"spass-{host}-{process}-{int(start) + 1}-{rest}")
    contain(runtime, "answer({})")
    await ContainerRunner().run({"prompt": "x"})
    assert runtime.running == set()


def test_importing_the_room_loads_no_runner() -> None:
    code = "import spass.sandbox, sys; print('spass.sandbox.runner' in sys.modules, 'subprocess' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"]
