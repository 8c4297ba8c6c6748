"""The requirements of foreign agents, and the folders in which they may work."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spass.core.effects import ForeignRunner
from spass.core.errors import InvalidRequest, KindUnavailable
from spass.sandbox.foreign import versions
from spass.sandbox.foreign.service import ForeignAgents
from tests.unit.sandbox.foreign.stand_ins import StandIns, write_script

pytestmark = pytest.mark.anyio
RUNNERS: tuple[ForeignRunner, ForeignRunner] = ("openhands", "claude_code")


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


@pytest.fixture(autouse=True)
def _no_answers_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_answers", {})


async def test_a_machine_that_has_everything_can_run_both(stand_ins: StandIns) -> None:
    assert [stand_ins.foreign_agents().unavailable(runner) for runner in RUNNERS] == [None, None]
    assert stand_ins.installations == [], "the check installs nothing"


def fake_python(stand_ins: StandIns, version: tuple[int, int], missing: list[str]) -> str:
    answer = f"[[{version[0]}, {version[1]}], {str(missing).replace(chr(39), chr(34))}]"
    return str(write_script(stand_ins.bin / "fake-python", f"echo '{answer}'"))


def old_python(stand_ins: StandIns) -> dict[str, str]:
    return {"SPASS_OPENHANDS_PYTHON": fake_python(stand_ins, (3, 11), [])}


def no_sdk(stand_ins: StandIns) -> dict[str, str]:
    return {"SPASS_OPENHANDS_PYTHON": fake_python(stand_ins, (3, 12), ["openhands.tools"])}


def broken_python(stand_ins: StandIns) -> dict[str, str]:
    return {"SPASS_OPENHANDS_PYTHON": str(stand_ins.bin / "absent")}


def no_python(stand_ins: StandIns) -> dict[str, str]:
    return {"SPASS_OPENHANDS_PYTHON": "", "PATH": str(stand_ins.root)}


def no_llm_key(stand_ins: StandIns) -> dict[str, str]:
    return {"LLM_API_KEY": ""}


def no_node(stand_ins: StandIns) -> dict[str, str]:
    return {"PATH": str(stand_ins.root)}


def old_node(stand_ins: StandIns) -> dict[str, str]:
    write_script(stand_ins.bin / "node", "echo v20.20.2")
    return {}


def strange_node(stand_ins: StandIns) -> dict[str, str]:
    write_script(stand_ins.bin / "node", "echo hello")
    return {}


def no_npm(stand_ins: StandIns) -> dict[str, str]:
    (stand_ins.bin / "npm").unlink()
    return {"PATH": f"{stand_ins.bin}"}


def no_anthropic_key(stand_ins: StandIns) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": ""}


@pytest.mark.parametrize(
    ("runner", "change", "words"),
    [
        ("openhands", old_python, ["Python 3.12", "the newest Python found is 3.11", "pip install openhands-sdk"]),
        (
            "openhands",
            no_sdk,
            ["openhands-sdk and openhands-tools are not installed", "pip install openhands-sdk", "SPASS_OPENHANDS_PYTHON"],
        ),
        ("openhands", broken_python, ["SPASS_OPENHANDS_PYTHON", "pip install openhands-sdk"]),
        ("openhands", no_python, ["pip install openhands-sdk"]),
        ("openhands", no_llm_key, ["LLM_API_KEY is not set", "export LLM_API_KEY=…"]),
        ("claude_code", no_node, ["Node 22", "nvm install 22"]),
        ("claude_code", old_node, ["Node 22", "v20.20.2", "nvm install 22"]),
        ("claude_code", strange_node, ["Node 22", "nvm install 22"]),
        ("claude_code", no_npm, ["npm is not on the PATH", "nvm install 22"]),
        ("claude_code", no_anthropic_key, ["ANTHROPIC_API_KEY is not set", "export ANTHROPIC_API_KEY=…"]),
    ],
)
async def test_what_is_missing_is_named_with_the_command_that_helps(
    stand_ins: StandIns, runner: ForeignRunner, change: Callable[[StandIns], dict[str, str]], words: list[str]
) -> None:
    write_script(stand_ins.bin / "sh", 'exec /bin/sh "$@"')
    environment = stand_ins.environment(**change(stand_ins))
    foreign_agents = stand_ins.foreign_agents(environment)
    reason = foreign_agents.unavailable(runner)
    assert reason is not None
    assert [word for word in words if word not in reason] == []
    assert not any(value in reason for value in environment.values() if len(value) > 20)
    spec = stand_ins.spec(runner, "pass")
    with pytest.raises(RuntimeError, match=r"This gateway cannot run (OpenHands|Claude Code): "):
        foreign_agents.check(spec)
    with pytest.raises(KindUnavailable):
        await foreign_agents.run(spec, model="m", owner="t")
    assert stand_ins.installations == []


@pytest.mark.parametrize("runner", RUNNERS)
async def test_without_roots_nothing_runs_and_nothing_is_looked_for(stand_ins: StandIns, runner: ForeignRunner) -> None:
    write_script(stand_ins.bin / "node", f"touch {stand_ins.folder}/asked")
    write_script(stand_ins.bin / "openhands-python", f"touch {stand_ins.folder}/asked")
    foreign_agents = ForeignAgents(None, environment=stand_ins.environment(), folder=stand_ins.spass)
    assert "harnesses: {roots: [FOLDER]}" in str(foreign_agents.unavailable(runner))
    with pytest.raises(RuntimeError, match=r"harnesses: \{roots:"):
        await foreign_agents.run(stand_ins.spec(runner, "pass"), model="m", owner="t")
    assert not (stand_ins.folder / "asked").exists()


async def test_a_key_of_the_call_makes_the_variable_unnecessary(stand_ins: StandIns) -> None:
    foreign_agents = stand_ins.foreign_agents(stand_ins.environment(LLM_API_KEY="", ANTHROPIC_API_KEY=""))
    for runner in RUNNERS:
        assert foreign_agents.unavailable(runner) is not None
        foreign_agents.check(stand_ins.spec(runner, "pass", api_key="k"))


def test_the_first_python_that_has_the_sdk_is_used(stand_ins: StandIns) -> None:
    environment = stand_ins.environment(SPASS_OPENHANDS_PYTHON="")
    newer = write_script(stand_ins.bin / "python3.13", "echo '[[3, 13], []]'")
    write_script(stand_ins.bin / "python3.12", "echo '[[3, 12], [\"openhands.sdk\"]]'")
    foreign_agents = stand_ins.foreign_agents(environment)
    assert foreign_agents.unavailable("openhands") is None
    newer.unlink()
    versions._answers.clear()
    assert "are not installed" in str(foreign_agents.unavailable("openhands"))
    installed = stand_ins.spass / "openhands" / "bin" / "python"
    installed.parent.mkdir(parents=True)
    write_script(installed, "echo '[[3, 12], []]'")
    assert foreign_agents.unavailable("openhands") is None


def test_interpreters_are_asked_once_in_a_while(stand_ins: StandIns) -> None:
    log = stand_ins.folder / "asked"
    write_script(stand_ins.bin / "node", f"echo x >> {log}; echo v22.0.0")
    for _ in range(5):
        assert stand_ins.foreign_agents().unavailable("claude_code") is None
    assert log.read_text() == "x\n"


def workspaces(stand_ins: StandIns) -> dict[str, str]:
    """Return the workspaces that must be refused, by name."""
    root, outside = stand_ins.root, stand_ins.folder / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "file").write_text("x")
    (stand_ins.folder / "projects-2").mkdir()
    return {
        "none": "",
        "blank": "  ",
        "relative": "app",
        "home": "~/app",
        "root of the system": "/",
        "outside": str(outside),
        "sibling with the same beginning": str(stand_ins.folder / "projects-2"),
        "dots": f"{root}/../outside",
        "dots in the middle": f"{root}/app/../../outside",
        "link": str(root / "link"),
        "dots behind a link": f"{root}/link/../home",
        "loop": str(root / "loop"),
        "file": str(root / "file"),
        "absent": str(root / "absent"),
        "null": f"{root}/app\0",
        "long": f"{root}/{'x' * 5000}",
        "line break": f"{root}/app\n",
        "surrogate": f"{root}/\ud800",
    }


async def test_a_workspace_outside_the_roots_is_refused_before_any_work(stand_ins: StandIns) -> None:
    foreign_agents = stand_ins.foreign_agents()
    for name, workspace in workspaces(stand_ins).items():
        for runner in RUNNERS:
            spec = stand_ins.spec(runner, "pass", workspace=workspace)
            with pytest.raises(InvalidRequest) as refusal:
                await foreign_agents.run(spec, model="m", owner="t")
            assert refusal.value.param == "params.workspace", name
            assert str(stand_ins.folder) not in refusal.value.message
            with pytest.raises(InvalidRequest):
                foreign_agents.check(spec)
    assert stand_ins.installations == []


async def test_what_is_outside_does_not_show_whether_it_exists(stand_ins: StandIns) -> None:
    messages = set()
    for workspace in ("/etc", "/etc/absent", str(stand_ins.root / "absent")):
        with pytest.raises(InvalidRequest) as refusal:
            stand_ins.foreign_agents().resolve_workspace(workspace)
        messages.add(refusal.value.message)
    assert len(messages) == 1


def test_links_and_dots_that_stay_inside_are_resolved(stand_ins: StandIns) -> None:
    foreign_agents, app = stand_ins.foreign_agents(), stand_ins.workspace.resolve()
    (stand_ins.root / "link").symlink_to(app)
    (stand_ins.folder / "root").symlink_to(stand_ins.root)
    for workspace in ("app", "./app/", "app/../app", "link", "../root/app"):
        assert foreign_agents.resolve_workspace(f"{stand_ins.root}/{workspace}") == app
    assert foreign_agents.resolve_workspace(str(stand_ins.root)) == stand_ins.root.resolve()
    linked = ForeignAgents([stand_ins.folder / "root"], environment=os.environ, folder=stand_ins.spass)
    assert linked.resolve_workspace(str(app)) == app


def test_no_root_allows_no_folder(stand_ins: StandIns) -> None:
    foreign_agents = ForeignAgents([], environment=stand_ins.environment(), folder=stand_ins.spass)
    with pytest.raises(InvalidRequest):
        foreign_agents.resolve_workspace(str(stand_ins.workspace))


def test_the_running_python_is_asked_too(stand_ins: StandIns) -> None:
    asked = []

    def probe(command: tuple[str, ...]) -> str:
        asked.append(command[0])
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.sandbox.foreign.openhands.probe", probe)
        stand_ins.foreign_agents(stand_ins.environment(SPASS_OPENHANDS_PYTHON="")).unavailable("openhands")
    assert asked[0] == sys.executable
