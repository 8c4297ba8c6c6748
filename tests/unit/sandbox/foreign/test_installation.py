"""The runner of the Claude Agent SDK is installed once, by one process at a time, and again after an interruption."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spass.core.errors import KindUnavailable
from spass.sandbox.foreign.claude_code import SOURCE
from tests.unit.sandbox.foreign.stand_ins import StandIns, write_script
from tests.unit.sandbox.process_list import wait_for_processes

pytestmark = pytest.mark.anyio

HELLO = "return [end('Hello.')]"


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


async def hello(stand_ins: StandIns, **variables: str) -> object:
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(**variables))
    return (await foreign_agents.run(stand_ins.spec("claude_code", HELLO), model="m", owner="t"))["content"]


async def test_the_first_use_installs_the_pinned_version_and_says_so(
    stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await hello(stand_ins) == "Hello."
    (started,) = [json.loads(line) for line in stand_ins.installations]
    folder = stand_ins.spass / "claude_code_runner"
    assert started["arguments"][0] == "install"
    assert "--ignore-scripts" in started["arguments"]
    assert started["folder"] == str(folder)
    for name in ("package.json", "package-lock.json", "runner.mjs"):
        assert (folder / name).read_bytes() == (SOURCE / name).read_bytes()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Installing the Claude Agent SDK (420 MB)" in printed.err
    assert "is installed" in printed.err

    assert await hello(stand_ins) == "Hello."
    assert len(stand_ins.installations) == 1
    assert capsys.readouterr().err == ""


async def test_npm_gets_its_own_settings_and_no_key(stand_ins: StandIns) -> None:
    settings = {"npm_config_registry": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:8", "NODE_EXTRA_CA_CERTS": "/x"}
    await hello(stand_ins, **settings)
    environment = json.loads(stand_ins.installations[0])["environment"]
    assert settings.items() <= environment.items()
    assert set(environment) - set(settings) <= {"PATH", "HOME", "PWD", "SHLVL", "_", "LC_CTYPE", "OLDPWD"}


def test_the_lock_file_names_no_registry_and_pins_every_package() -> None:
    locked = json.loads((SOURCE / "package-lock.json").read_text())
    pinned = json.loads((SOURCE / "package.json").read_text())
    assert locked["packages"][""]["dependencies"] == pinned["dependencies"]
    packages = {name: package for name, package in locked["packages"].items() if name}
    assert packages["node_modules/@anthropic-ai/claude-agent-sdk"]["version"] in pinned["dependencies"].values()
    assert not any("resolved" in package for package in packages.values())
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())


async def test_two_first_uses_at_the_same_time_install_once(stand_ins: StandIns) -> None:
    stand_ins.let_npm("time.sleep(0.5)")
    assert await asyncio.gather(*(hello(stand_ins) for _ in range(4))) == ["Hello."] * 4
    assert len(stand_ins.installations) == 1


INSTALL = """
import asyncio, sys
from pathlib import Path
from spass.sandbox.foreign.claude_code import ClaudeCode
asyncio.run(ClaudeCode({"PATH": sys.argv[2]}, Path(sys.argv[1])).prepare())
"""


def start_install(stand_ins: StandIns) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(stand_ins.spass), stand_ins.environment()["PATH"]],
        env={"PYTHONPATH": ":".join(sys.path)},
        stderr=subprocess.DEVNULL,
    )


def test_processes_that_need_it_at_the_same_time_install_once(stand_ins: StandIns) -> None:
    stand_ins.let_npm("time.sleep(0.5)")
    processes = [start_install(stand_ins) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len(stand_ins.installations) == 1


async def test_an_installation_that_a_crash_interrupted_is_repaired(stand_ins: StandIns) -> None:
    stand_ins.let_npm("(sdk / 'half').write_text('half'); time.sleep(30)")
    process = start_install(stand_ins)
    half = stand_ins.spass / "claude_code_runner" / "node_modules" / "@anthropic-ai" / "claude-agent-sdk" / "half"
    give_up = time.monotonic() + 20
    while not half.exists() and time.monotonic() < give_up:
        await asyncio.sleep(0.05)
    process.kill()
    process.wait()
    assert half.exists()
    stand_ins.let_npm("")
    assert await hello(stand_ins) == "Hello."
    assert not half.exists(), "half a package would stay"
    assert len(stand_ins.installations) == 2


async def test_a_cancelled_installation_leaves_no_npm_and_is_repaired(stand_ins: StandIns) -> None:
    stand_ins.let_npm("time.sleep(30)")
    task = asyncio.create_task(hello(stand_ins))
    npm = str(stand_ins.bin / "npm.py")
    await asyncio.to_thread(wait_for_processes, npm, 1, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for_processes, npm, 0)
    stand_ins.let_npm("")
    assert await hello(stand_ins) == "Hello."


@pytest.mark.parametrize("damage", ["node_modules", "node_modules/@anthropic-ai", "node_modules/.spass-complete"])
async def test_a_damaged_installation_is_repaired(stand_ins: StandIns, damage: str) -> None:
    await hello(stand_ins)
    damaged = stand_ins.spass / "claude_code_runner" / damage
    shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
    assert await hello(stand_ins) == "Hello."
    assert len(stand_ins.installations) == 2


async def test_another_version_is_replaced(stand_ins: StandIns) -> None:
    await hello(stand_ins)
    sdk = stand_ins.spass / "claude_code_runner" / "node_modules" / "@anthropic-ai" / "claude-agent-sdk" / "package.json"
    sdk.write_text(json.dumps({**json.loads(sdk.read_text()), "version": "0.1.0"}))
    assert await hello(stand_ins) == "Hello."
    assert len(stand_ins.installations) == 2


async def test_an_installation_by_hand_is_used(stand_ins: StandIns) -> None:
    folder = stand_ins.spass / "claude_code_runner"
    folder.mkdir(parents=True)
    shutil.copy(SOURCE / "package.json", folder)
    subprocess.run([str(stand_ins.bin / "npm"), "install"], cwd=folder, check=True)  # noqa: ASYNC221
    (folder / "node_modules" / ".package-lock.json").write_text("{}")
    assert await hello(stand_ins) == "Hello."
    assert len(stand_ins.installations) == 1


async def test_a_changed_runner_is_replaced_without_an_installation(stand_ins: StandIns) -> None:
    await hello(stand_ins)
    runner = stand_ins.spass / "claude_code_runner" / "runner.mjs"
    runner.write_text("throw new Error('old')")
    assert await hello(stand_ins) == "Hello."
    assert len(stand_ins.installations) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit('npm error code ENOTFOUND')", "it ended with exit code 1: npm error code ENOTFOUND"),
        ("import shutil; shutil.rmtree('node_modules'); os._exit(0)", "npm ended without having installed"),
    ],
)
async def test_a_failed_installation_says_what_to_do(stand_ins: StandIns, code: str, said: str) -> None:
    stand_ins.let_npm(code)
    with pytest.raises(KindUnavailable) as failure:
        await hello(stand_ins)
    assert said in failure.value.message
    assert failure.value.message.endswith("npm install --prefix ~/.spass/claude_code_runner")
    assert isinstance(failure.value, RuntimeError)
    stand_ins.let_npm("")
    assert await hello(stand_ins) == "Hello."


async def test_npm_is_needed_only_for_the_installation(stand_ins: StandIns) -> None:
    npm = stand_ins.bin / "npm"
    only = {"PATH": f"{stand_ins.bin}:{stand_ins.folder}"}
    write_script(stand_ins.bin / "sh", 'exec /bin/sh "$@"')
    hidden = npm.rename(stand_ins.folder / "npm-elsewhere")
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(**only))
    assert "npm is not on the PATH" in str(foreign_agents.unavailable("claude_code"))
    with pytest.raises(KindUnavailable, match="npm is not on the PATH"):
        await hello(stand_ins, **only)
    hidden.rename(npm)
    assert await hello(stand_ins) == "Hello."
    npm.unlink()
    assert foreign_agents.unavailable("claude_code") is None


async def test_a_folder_that_cannot_be_written_is_named(stand_ins: StandIns) -> None:
    stand_ins.spass.write_text("not a folder")
    with pytest.raises(KindUnavailable, match="cannot be written"):
        await hello(stand_ins)
