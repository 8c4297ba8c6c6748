"""Changes of the agents' files take effect while the gateway runs, and a broken file keeps the last good version of its agent."""

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx
import pytest

from local.agent_reload import AgentReload, reloading_agents
from local.server import local_app, local_services
from spass.agents.kinds.simple import SimpleAgent
from spass.core.errors import AgentNotFound
from spass.testing.aws import MemoryAws
from spass.web.services import Services, Settings

TOKEN = "reload-token"
CONFIG = f"""
models:
  - {{name: talker, context_window: 1000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
tenants: [{{id: demo, tokens: [{{id: t, sha256: {hashlib.sha256(TOKEN.encode()).hexdigest()}}}]}}]
"""


def agent(name: str, description: str = "", addition: str = "") -> str:
    return f"name: {name}\nmodel: talker\ndescription: '{description}'\n{addition}"


@dataclass
class Running:
    """A reload over ``folder``, whose polls a test makes itself."""

    folder: Path
    services: Services
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reload = AgentReload(self.services, self.lines.extend)

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.yaml").write_text(text)

    def settle(self) -> list[str]:
        """Poll until every change has taken effect. Return the lines that this reports."""
        self.lines.clear()
        for _ in range(3):
            self.reload.poll()
        return [line.strip() for line in self.lines]

    def descriptions(self) -> dict[str, str]:
        return {entry.name: entry.description for entry in self.services.agents.list().agents}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.chdir(tmp_path)  # messages name the files relative to it
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "guide.yaml").write_text(agent("guide", "first"))
    settings = Settings(config=tmp_path / "gateway.yaml", agents=folder, table="t", bucket="b")
    return Running(folder, Services(settings))


def test_without_a_change_nothing_is_reported_or_replaced(running: Running) -> None:
    agents = running.services.agents
    os.utime(running.folder / "guide.yaml")
    assert running.settle() == []
    assert running.services.agents is agents


def test_a_changed_file_is_applied(running: Running) -> None:
    running.settle()
    running.write("guide", agent("guide", "second"))
    assert running.settle() == ["agents/guide.yaml: the file is applied"]
    assert running.descriptions() == {"guide": "second"}


def test_a_change_between_the_start_and_the_first_poll_is_applied(running: Running) -> None:
    running.write("guide", agent("guide", "second"))
    running.settle()
    assert running.descriptions() == {"guide": "second"}


def test_a_new_file_is_an_agent_and_a_removed_file_is_not(running: Running) -> None:
    running.write("cook", agent("cook"))
    assert running.settle() == ["agents/cook.yaml: the agent is new"]
    (running.folder / "guide.yaml").unlink()
    assert running.settle() == ["agents/guide.yaml: the agent is removed"]
    assert running.descriptions() == {"cook": ""}
    with pytest.raises(AgentNotFound):
        running.services.agents.get("guide")


def test_a_renamed_agent_is_replaced_at_once(running: Running) -> None:
    running.settle()
    (running.folder / "guide.yaml").rename(running.folder / "leader.yaml")
    running.write("leader", agent("leader"))
    names = []
    for _ in range(3):
        running.reload.poll()
        names.append([*running.descriptions()])
    assert names == [["guide"], ["leader"], ["leader"]]


def test_a_broken_file_keeps_the_last_good_version_until_it_is_mended(running: Running) -> None:
    running.settle()
    running.write("guide", agent("guide", "second", "temprature: 1\n"))
    running.write("cook", agent("cook"))
    assert running.settle() == [
        "agents/cook.yaml: the agent is new",
        "agents/guide.yaml:4: unknown key 'temprature'; did you mean 'temperature'?",
        "agents/guide.yaml: its last good version stays in use until the file is correct",
    ]
    assert running.descriptions() == {"cook": "", "guide": "first"}
    assert running.settle() == []
    running.write("guide", agent("guide", "first"))
    assert running.settle() == ["agents/guide.yaml: the file is applied"]


def test_a_new_broken_file_is_not_used_and_a_removed_one_is_forgotten(running: Running) -> None:
    (running.folder / "cook.yml").write_text(agent("cook"))
    assert running.settle() == [
        "agents/cook.yml: the name of an agent's file must end in .yaml; rename it to cook.yaml",
        "agents/cook.yml: it is not used until the file is correct",
    ]
    (running.folder / "cook.yml").rename(running.folder / "cook.yaml")
    assert running.settle() == ["agents/cook.yaml: the agent is new"]


def test_a_broken_file_that_is_removed_removes_its_agent(running: Running) -> None:
    running.write("guide", "name: [")
    running.settle()
    (running.folder / "guide.yaml").unlink()
    assert running.settle() == ["agents/guide.yaml: the agent is removed"]
    assert running.descriptions() == {}


def test_tools_that_an_agent_cannot_use_are_reported(running: Running) -> None:
    running.write("guide", agent("guide", "second", "kind: simple\ntools: [calculator]\n"))
    notice, applied = running.settle()
    assert applied == "agents/guide.yaml: the file is applied"
    assert notice.startswith("agents/guide.yaml:5: tools: ")
    assert "the kind simple of 'guide' uses no tools" in notice


def test_a_kind_that_fails_does_not_hold_up_the_other_files(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SimpleAgent, **__: object) -> None:
        raise RuntimeError("a mistake in the kind")

    running.settle()
    monkeypatch.setattr(SimpleAgent, "__init__", fail)
    for name, kind in (("cook", "orchestrator"), ("guide", "simple"), ("poet", "orchestrator")):
        running.write(name, agent(name, "second", f"kind: {kind}\n"))
    running.reload.poll()
    with pytest.raises(RuntimeError):
        running.reload.poll()
    running.settle()
    assert running.descriptions() == {"cook": "second", "guide": "first", "poet": "second"}


def test_a_file_is_read_only_after_its_editor_has_finished(running: Running) -> None:
    running.settle()
    whole = agent("guide", "second", "system_prompt: Answer in rhymes.\n")
    for end in range(0, len(whole) + 1, 8):
        running.write("guide", whole[:end])
        running.reload.poll()
        assert running.descriptions() == {"guide": "first"}
    running.write("guide", whole)
    assert running.settle() == ["agents/guide.yaml: the file is applied"]
    assert running.services.agents.get("guide").build().system_prompt == "Answer in rhymes."


def test_an_editor_that_replaces_the_file_does_not_remove_the_agent(running: Running) -> None:
    running.settle()
    file = running.folder / "guide.yaml"
    file.rename(running.folder / "guide.yaml~")
    running.reload.poll()
    (running.folder / ".guide.yaml.new").write_text(agent("guide", "second"))
    (running.folder / ".guide.yaml.new").rename(file)
    assert running.settle() == ["agents/guide.yaml: the file is applied"]


def test_a_file_with_an_older_time_and_the_same_size_is_a_change(running: Running) -> None:
    running.settle()
    running.write("guide", agent("guide", "tsrif"))
    os.utime(running.folder / "guide.yaml", (1, 1))
    running.settle()
    assert running.descriptions() == {"guide": "tsrif"}


def test_a_file_that_changes_while_it_is_read_is_read_later(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.settle()
    running.write("guide", agent("guide", "half"))
    running.reload.poll()
    read = Path.read_text

    def read_and_write(path: Path, encoding: str | None = None) -> str:
        text = read(path, encoding=encoding)
        path.write_text(agent("guide", "whole text"))
        return text

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_and_write)
        running.reload.poll()
    assert running.descriptions() == {"guide": "first"}
    running.settle()
    assert running.descriptions() == {"guide": "whole text"}


def test_a_missing_folder_is_reported_once_and_keeps_the_agents(running: Running) -> None:
    running.settle()
    shutil.move(running.folder, running.folder.with_name("aside"))
    assert running.settle() == [
        "agents: the folder does not exist; set SPASS_AGENTS to the folder of agents",
        "The agents stay as they were.",
    ]
    assert running.settle() == []
    assert running.descriptions() == {"guide": "first"}
    shutil.move(running.folder.with_name("aside"), running.folder)
    running.write("guide", agent("guide", "second"))
    assert running.settle() == ["agents/guide.yaml: the file is applied"]


def test_a_link_to_a_missing_file_is_reported_once(running: Running) -> None:
    (running.folder / "cook.yaml").symlink_to("elsewhere")
    problem, effect = running.settle()
    assert problem.startswith("agents/cook.yaml: cannot read ")
    assert effect == "agents/cook.yaml: it is not used until the file is correct"
    assert running.settle() == []


def test_a_request_keeps_the_agent_that_it_has_found(running: Running) -> None:
    found = running.services.agents.get("guide")
    running.write("guide", agent("guide", "second"))
    running.settle()
    assert (found.description, running.services.agents.get("guide").description) == ("first", "second")


@pytest.mark.anyio
async def test_the_gateway_on_this_machine_applies_a_change_within_ten_seconds(
    running: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPASS_CONFIG", str(running.services.settings.config))
    monkeypatch.setenv("SPASS_AGENTS", str(running.folder))
    services = local_services()
    services.aws = MemoryAws()
    headers = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": "ada"}
    transport = httpx.ASGITransport(app=local_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        with reloading_agents(services):
            assert (await client.get("/a1/agents/guide")).json()["description"] == "first"
            running.write("guide", agent("guide", "second"))
            running.write("cook", "name: cook\nmodel: nobody\n")
            output = ""
            with anyio.fail_after(10):
                while "guide.yaml: the file is applied" not in output:
                    await anyio.sleep(0.05)
                    output += capfd.readouterr().out
            assert "\n  agents/cook.yaml: it is not used until the file is correct\n" in output
            assert (await client.get("/a1/agents/guide")).json()["description"] == "second"
            assert (await client.get("/a1/agents/cook")).status_code == 404


def delegating(name: str, delegate: str, description: str = "") -> str:
    return agent(name, description, f"workspace: default\ntools: [delegate]\ndelegates: [{delegate}]\n")


def test_an_agent_waits_for_the_file_of_its_delegate(running: Running) -> None:
    running.settle()
    running.write("boss", delegating("boss", "cook"))
    assert running.settle() == [
        "agents/boss.yaml:6: delegates[0]: there is no agent 'cook'; known: guide",
        "agents/boss.yaml: it is not used until the file is correct",
    ]
    running.write("guide", agent("guide", "second"))
    assert running.settle() == ["agents/guide.yaml: the file is applied"]
    running.write("cook", agent("cook"))
    assert running.settle() == ["agents/boss.yaml: the agent is new", "agents/cook.yaml: the agent is new"]
    assert [*running.descriptions()] == ["boss", "cook", "guide"]


def test_two_files_that_name_each_other_are_not_applied(running: Running) -> None:
    running.write("cook", agent("cook", "first"))
    running.write("boss", delegating("boss", "cook"))
    running.settle()
    running.write("cook", delegating("cook", "boss", "second"))
    assert running.settle() == [
        "agents/boss.yaml:6: delegates[0]: 'cook' leads back to this agent (boss → cook → boss); remove one of these delegates",
        "agents/boss.yaml: its last good version stays in use until the file is correct",
        "agents/cook.yaml:6: delegates[0]: 'boss' leads back to this agent (cook → boss → cook); remove one of these delegates",
        "agents/cook.yaml: its last good version stays in use until the file is correct",
    ]
    assert running.descriptions() == {"boss": "", "cook": "first", "guide": "first"}
    running.write("boss", agent("boss", "second"))
    assert running.settle() == ["agents/boss.yaml: the file is applied", "agents/cook.yaml: the file is applied"]
    assert running.descriptions() == {"boss": "second", "cook": "second", "guide": "first"}


def test_an_agent_whose_delegate_is_removed_stays_and_is_reported_once(running: Running) -> None:
    running.write("boss", delegating("boss", "guide"))
    running.settle()
    (running.folder / "guide.yaml").unlink()
    assert running.settle() == [
        "agents/boss.yaml:6: delegates[0]: there is no agent 'guide'",
        "agents/boss.yaml: its last good version stays in use until the file is correct",
        "agents/guide.yaml: the agent is removed",
    ]
    assert running.settle() == []
    assert [*running.descriptions()] == ["boss"]
