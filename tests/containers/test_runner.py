"""Containers of one shell script: what they see, what they may write, how long they live, and that they are removed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spass.sandbox import ContainerFailed, ContainerRunner, ContainerTimedOut, MountRefused
from tests.containers.conftest import containers

pytestmark = pytest.mark.anyio
MakeImage = Callable[[str], str]

ANSWER = "echo ---SPASS_OUTPUT_START---; {}; echo ---SPASS_OUTPUT_END---"


def say(text: str) -> str:
    """Return the script that answers with what the command ``text`` prints, as one member of an object."""
    return f"echo ---SPASS_OUTPUT_START---; printf '{{\"said\": \"'; {text}; printf '\"}}\\n'; echo ---SPASS_OUTPUT_END---"


async def test_a_script_answers_with_its_payload(runtime: str, shell_image: MakeImage) -> None:
    image = shell_image("read -r line\n" + ANSWER.format("printf '%s\\n' \"$line\""))
    answer = await ContainerRunner(image=image, runtime=runtime).run({"prompt": "ä\n'\""}, secrets={"KEY": "value"})
    assert answer == {"prompt": "ä\n'\"", "workspace": "", "secrets": {"KEY": "value"}}


def inspect(runtime: str, name: str) -> str:
    return subprocess.run([runtime, "inspect", name], capture_output=True, text=True, check=True).stdout


def commands_of_all_processes() -> str:
    return subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout


async def test_a_container_has_no_network_no_rights_and_no_secrets(
    runtime: str, shell_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:hidden-password@proxy")
    monkeypatch.setenv("SPASS_TOKEN", "hidden-token")
    image = shell_image(
        textwrap.dedent("""\
        read -r line
        echo '---SPASS_EFFECT--- {"type": "ReportStatus", "detail": "ready"}'
        read -r line
        echo ---SPASS_OUTPUT_START---
        printf '{"network": "'; while read -r name rest; do case "$name" in *:) printf '%s ' "$name";; esac; done < /proc/net/dev
        printf '", "rights": "'
        while read -r key value; do
            case "$key" in Cap*|NoNewPrivs:) printf '%s%s ' "$key" "$value";; esac
        done < /proc/self/status
        printf '", "environment": "'; env | while read -r line; do printf '%s ' "$line"; done
        printf '", "command": "'; cat /proc/1/cmdline /proc/self/cmdline | while read -r line; do printf '%s ' "$line"; done
        printf '", "root": "'; if touch /new 2>/dev/null; then printf writable; else printf read-only; fi
        printf '", "tmp": "'; if touch /tmp/new 2>/dev/null; then printf writable; fi
        printf '"}\\n'
        echo ---SPASS_OUTPUT_END---
        """)
    )
    runner = ContainerRunner(image=image, runtime=runtime)
    async with runner.open({"prompt": "x"}, tenant_id="tenant", secrets={"KEY": "hidden-secret"}) as container:
        await container.receive()
        [name] = containers(runtime)
        inspected, commands = inspect(runtime, name), commands_of_all_processes()
        container.send({"result": None})
        message = await container.receive()
    answer = getattr(message, "answer", {})
    assert answer["network"].split() == ["lo:"]
    assert answer["root"] == "read-only"
    assert answer["tmp"] == "writable"
    rights = dict(part.split(":") for part in answer["rights"].split())
    assert {rights[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
    assert rights["NoNewPrivs"] == "1"
    assert "hidden" not in json.dumps(answer)
    assert "hidden" not in inspected + commands
    assert json.loads(inspected)[0]["HostConfig"]["PidsLimit"] == 256
    assert json.loads(inspected)[0]["HostConfig"]["Memory"] == 2**30


async def test_a_mount_is_read_only_unless_a_root_allows_writing(runtime: str, shell_image: MakeImage, tmp_path: Path) -> None:
    data, allow_list = tmp_path / "da ta,x", tmp_path / "allow.json"
    data.mkdir()
    (data / "file").write_text("content")
    link = tmp_path / "link"
    link.symlink_to(data)
    allow_list.write_text(json.dumps({"roots": [{"path": str(data), "read_only": False}]}))
    script = f"""read -r line\n{say(f"cat '{data}/file'; if touch '{data}/new' 2>/dev/null; then printf ' written'; fi")}"""
    runner = ContainerRunner(image=shell_image(script), runtime=runtime, mount_allowlist_path=str(allow_list))
    assert await runner.run({"prompt": "x"}, mounts=[str(link)]) == {"said": "content"}
    assert [path.name for path in data.iterdir()] == ["file"]
    assert await runner.run({"prompt": "x"}, mounts=[f"{link}:rw"]) == {"said": "content written"}
    assert {path.name for path in data.iterdir()} == {"file", "new"}


@pytest.fixture
def inner_mount(tmp_path: Path) -> Iterator[Path]:
    """A folder in which another file system is mounted. Only root can make one."""
    inner = tmp_path / "data/inner"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(inner)], check=True)
    yield inner
    subprocess.run(["umount", str(inner)], check=True)


async def test_a_read_only_mount_has_no_writable_mount_in_it(runtime: str, shell_image: MakeImage, inner_mount: Path) -> None:
    script = f"read -r line\n{say(f'if touch {inner_mount}/new 2>/dev/null; then printf written; fi')}"
    runner = ContainerRunner(image=shell_image(script), runtime=runtime)
    with pytest.raises(MountRefused, match="inner' is mounted in it"):
        await runner.run({"prompt": "x"}, mounts=[str(inner_mount.parent)])
    assert await runner.run({"prompt": "x"}, mounts=[str(inner_mount)]) == {"said": ""}


async def test_the_workspace_is_the_current_folder(runtime: str, shell_image: MakeImage, tmp_path: Path) -> None:
    runner = ContainerRunner(image=shell_image(f"read -r line\n{say('printf %s $PWD')}"), runtime=runtime)
    assert await runner.run({"prompt": "x"}, workspace=str(tmp_path), mounts=[str(tmp_path)]) == {"said": str(tmp_path)}


async def test_a_timeout_leaves_no_container(runtime: str, shell_image: MakeImage) -> None:
    runner = ContainerRunner(image=shell_image("trap '' TERM; sleep 60"), runtime=runtime, timeout=1)
    with pytest.raises(ContainerTimedOut, match="took longer than 1 seconds"):
        await runner.run({"prompt": "x"})
    assert containers(runtime) == []


async def test_a_cancelled_run_leaves_no_container(runtime: str, shell_image: MakeImage) -> None:
    runner = ContainerRunner(image=shell_image("sleep 60"), runtime=runtime)
    for pause in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):  # before, while and after it starts
        task = asyncio.create_task(runner.run({"prompt": "x"}))
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert containers(runtime) == []


async def test_six_at_once_are_never_six(runtime: str, shell_image: MakeImage, tmp_path: Path) -> None:
    data, allow_list = tmp_path / "data", tmp_path / "allow.json"
    data.mkdir()
    allow_list.write_text(json.dumps({"roots": [{"path": str(data), "read_only": False}]}))
    script = f"read -r line; echo + >> {data}/log; sleep 1; echo - >> {data}/log; {say('printf x')}"
    runner = ContainerRunner(image=shell_image(script), runtime=runtime, mount_allowlist_path=str(allow_list))
    await asyncio.gather(*(runner.run({"prompt": "x"}, mounts=[f"{data}:rw"]) for _ in range(6)))
    log = (data / "log").read_text().replace("\n", "")
    assert len(log) == 12
    assert max(log[:end].count("+") - log[:end].count("-") for end in range(13)) == 5


async def test_a_program_that_fails_is_one_clear_error(runtime: str, shell_image: MakeImage) -> None:
    runner = ContainerRunner(image=shell_image("read -r line; echo 'Table not found' >&2; exit 3"), runtime=runtime)
    with pytest.raises(ContainerFailed, match=r"exit code 3.*Table not found"):
        await runner.run({"prompt": "x"})


async def test_output_without_end_is_one_clear_error(runtime: str, shell_image: MakeImage) -> None:
    runner = ContainerRunner(image=shell_image("read -r line; cat /dev/zero"), runtime=runtime)
    with pytest.raises(ContainerFailed, match="100 MB"):
        await runner.run({"prompt": "x"})


async def test_a_missing_image_is_one_clear_error(runtime: str) -> None:
    with pytest.raises(ContainerFailed, match="exit code 125"):
        await ContainerRunner(image="localhost/spass-no-such-image:none", runtime=runtime).run({"prompt": "x"})


async def test_the_next_start_removes_the_container_of_a_killed_process(runtime: str, shell_image: MakeImage) -> None:
    image = shell_image('read -r line; case "$line" in *wait*) sleep 60;; esac; ' + say("printf x"))
    program = textwrap.dedent(f"""
        import asyncio
        from spass.sandbox import ContainerRunner
        asyncio.run(ContainerRunner(image={image!r}, runtime={runtime!r}).run({{"prompt": "wait"}}))
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=environment)
    while not containers(runtime, owner.pid):
        await asyncio.sleep(0.05)
    await ContainerRunner(image=image, runtime=runtime).run({"prompt": "x"})
    assert len(containers(runtime, owner.pid)) == 1, "its process lives"
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    await ContainerRunner(image=image, runtime=runtime).run({"prompt": "x"})
    assert containers(runtime, owner.pid) == []
