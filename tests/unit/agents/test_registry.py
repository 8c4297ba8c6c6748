"""Test that the gateway does not start with an invalid agent file, and that the error names the file, the line and the reason."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from spass.agents.kinds import KINDS, AgentContext, BaseAgent, parameter, user
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.simple import SimpleAgent
from spass.agents.registry import AgentRegistry
from spass.agents.responses import AgentConfig
from spass.agents.sandboxed import contain
from spass.agents.spec import ContainerSettings
from spass.core.effects import Answer, Infer, Steps
from spass.core.errors import AgentNotFound
from spass.sandbox import ContainerRunner
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.yaml_source import ConfigError

CONFIG = GatewayConfig(
    models=(
        ModelConfig(name="talker", context_window=1000),
        ModelConfig(name="embedder", kind="embedding", context_window=1000, dimensions=8),
    )
)


@dataclass(frozen=True, kw_only=True)
class Shout(BaseAgent):
    """Answer loudly."""

    volume: int = parameter(5, "How loud.", ge=1, le=11)
    tone: Literal["high", "low"] = parameter("high", "The pitch.")
    words: tuple[str, ...] = parameter((), "Words to shout.")

    def __post_init__(self) -> None:
        if self.tone == "low" and self.volume > 10:
            raise ValueError("a low voice is not loud; choose a lower volume")

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer((user(input),))
        return Answer(reply.content.upper())


@pytest.fixture(autouse=True)
def _in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)  # messages name the file relative to it


@pytest.fixture(autouse=True)
def _shout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS, "_registered", {"shout": Shout})


ROOT = Path(__file__).parents[3]
GOOD = "name: good\nmodel: talker\n"


def load(folder: Path, **files: str) -> AgentRegistry:
    for stem, text in files.items():
        (folder / f"{stem}.yaml").write_text(text, encoding="utf-8")
    return AgentRegistry.load(folder, CONFIG)


def load_error(folder: Path, **files: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, **files)
    return str(caught.value)


def test_a_name_and_a_model_are_enough(tmp_path: Path) -> None:
    spec = load(tmp_path, good=GOOD).get("good")
    assert (spec.kind, spec.rag_top_k, spec.tools, spec.rag_index) == ("orchestrator", None, (), None)
    assert spec.build() == OrchestratorAgent(max_turns=10, max_tokens=1024, temperature=0.7, system_prompt="")


@pytest.mark.parametrize(
    ("addition", "line", "reason"),
    [
        ("temprature: 1", 3, "unknown key 'temprature'; did you mean 'temperature'?"),
        ("tools: [calculater]", 3, "unknown tool 'calculater'; did you mean 'calculator'?"),
        ("tools:\n  - calculator\n  - nothing", 5, "unknown tool 'nothing'"),
        ("tools: [calculator, calculator]", 3, "twice"),
        ("tools: calculator", 3, "must be a list"),
        ("workspace: a/b", 3, "workspace"),
        ("paths: {wirte: [src/]}", 3, "unknown key 'wirte'; did you mean 'write'?"),
        ("workspace: w\npaths:\n  write:\n    - src/\n    - /a", 7, "paths.write[1]"),
        ("workspace: w\npaths: {write: ['!src/']}", 4, "paths.write"),
        ("approval: [calculator]", 3, "'calculator' changes nothing that a person could approve"),
        ("approval: [delete]", 3, "did you mean 'deletes'?"),
        ("approval: [deletes, deletes]", 3, "twice"),
        ("editor: {timeout: 601}", 3, "editor.timeout"),
        ("editor: {format: udiff}", 3, "editor.format"),
        ("tools: [1]", 3, "must be text"),
        ("kind: simpel", 3, "kind: there is no agent kind 'simpel'; did you mean 'simple'?"),
        ("kind: 3", 3, "kind: must be text"),
        ("kind:", 3, "kind: must be text"),
        ("volume: 3", 3, "unknown key 'volume'; it is a key of the kind shout, and the kind of this agent is orchestrator"),
        (
            "kind: simple\nvolume: 3",
            4,
            "unknown key 'volume'; it is a key of the kind shout, and the kind of this agent is simple",
        ),
        ("sub_model: talker", 3, "it is a key of the kind rlm, and the kind of this agent is orchestrator"),
        ("kind: rlm\nsub_model: talkre", 4, "gateway.yaml has no chat model 'talkre'; did you mean 'talker'?"),
        ("kind: rlm\nmax_sub_calls: -1", 4, "max_sub_calls: must be greater than or equal to 0"),
        ("kind: shout\nvolume: 12", 4, "volume: must be less than or equal to 11"),
        ("kind: shout\nvolume: loud", 4, "volume: must be a whole number"),
        ("kind: shout\ntone: hgh", 4, "tone: must be one of 'high' or 'low'; did you mean 'high'?"),
        ("kind: shout\nwords: [1]", 4, "words[0]: must be text"),
        ("kind: shout\nwords: a", 4, "words: must be a list"),
        ("kind: shout\nmax_turns: 3", 4, "it is a key of the kind simple, orchestrator, native_react"),
        ("kind: shout\ntone: low\nvolume: 11", 3, "a low voice is not loud"),
        ("kind: simple\nmax_turn: 2", 4, "unknown key 'max_turn'; did you mean 'max_turns'?"),
        ("kind: simple\nmax_turns: 0", 4, "max_turns: must be greater than or equal to 1"),
        ("max_turns: 0", 3, "max_turns"),
        ("max_turns: '3'", 3, "must be a whole number"),
        ("max_turns: true", 3, "must be a whole number"),
        ("temperature: 3", 3, "temperature"),
        ("temperature: .nan", 3, "temperature"),
        ("max_tokens: 0", 3, "max_tokens"),
        (f"max_tokens: {2**31}", 3, "max_tokens"),
        ("rag_index: 'a b'", 3, "rag_index"),
        ("rag_top_k: 51", 3, "rag_top_k"),
        ("system_prompt: [a]", 3, "must be text"),
        ("model: talker", 3, "second time"),
        ("description: *x", 3, "alias"),
        ("tools: [calculator, read_file]", 3, "the tool 'read_file' needs a workspace; add a line such as 'workspace: default'"),
        ("workspace: w\ntools:\n  - delegate", 5, "'delegate' needs the names of agents; add a line such as 'delegates:"),
        ("container: {imag: x}", 3, "unknown key 'imag'; did you mean 'image'?"),
        ("container: {image: --privileged}", 3, "image"),
        ("container: {timeout: 0}", 3, "timeout"),
        ("container: {timeout: .inf}", 3, "timeout"),
        ("container: {runtime: runc}", 3, "runtime"),
        ("container: {secrets: {KEY: x}}", 3, "unknown key 'secrets'"),
        ("container: {workspace: work}", 3, "must be an absolute path in the container"),
        ("container: {mounts: [/]}", 3, "'/' cannot be mounted"),
        ("container: {mounts: [data]}", 3, "'data' cannot be mounted: it must be absolute"),
        ("container: {mounts: ['/no such folder']}", 3, "No such file"),
        ("container: {mounts: /data}", 3, "mounts"),
        ("container: {mount_allowlist: /no/such/file.json}", 3, "'/no/such/file.json' cannot be read"),
        ("container: docker", 3, "container"),
        ("sandbox: {imag: x}", 3, "sandbox: unknown key 'imag'; did you mean 'image'?"),
        ("sandbox: {mounts: [/]}", 3, "sandbox.mounts[0]: The path '/' cannot be mounted"),
        ("container: {}\nsandbox: {}", 4, "sandbox: is the earlier name of container; remove this key"),
    ],
)
def test_an_error_names_file_line_and_reason(tmp_path: Path, addition: str, line: int, reason: str) -> None:
    message = load_error(tmp_path, good=GOOD + addition)
    assert f"good.yaml:{line}:" in message
    assert reason in message


def test_the_parameters_of_a_kind_are_keys_of_the_file(tmp_path: Path) -> None:
    spec = load(tmp_path, good=GOOD + "kind: shout\nvolume: 7\nwords: [hey, you]\nmax_tokens: 9\n").get("good")
    assert spec.build() == Shout(volume=7, words=("hey", "you"), max_tokens=9)
    config = AgentConfig.with_defaults(spec, rag_top_k=5).to_dict()
    assert (config["kind"], config["volume"], config["tone"], config["words"]) == ("shout", 7, "high", ["hey", "you"])
    assert "max_turns" not in config


def test_a_missing_key_has_the_default_of_the_kind(tmp_path: Path) -> None:
    spec = load(tmp_path, good=GOOD + "kind: simple\n").get("good")
    assert spec.build() == SimpleAgent(max_turns=1, temperature=0.7, max_tokens=1024)


def test_an_alias_is_reported_as_the_kind_that_it_names(tmp_path: Path) -> None:
    agents = load(tmp_path, good=GOOD + "kind: react\n")
    assert [entry.kind for entry in agents.list().agents] == ["native_react"]
    assert AgentConfig.with_defaults(agents.get("good"), rag_top_k=5).kind == "native_react"


def test_tools_of_a_kind_without_tools_are_a_notice_with_the_line(tmp_path: Path) -> None:
    agents = load(tmp_path, good=GOOD + "kind: simple\ntools: [calculator]\n", other="name: other\nmodel: talker\n")
    (notice,) = agents.notices
    assert str(notice).endswith(
        "good.yaml:4: tools: the kind simple of 'good' uses no tools; remove this key, or choose another kind"
    )
    assert agents.get("good").tools == ("calculator",)


@pytest.mark.parametrize(
    ("stem", "text", "problem"),
    [
        *[
            (name, f"model: talker\nname: {name}\n", f"{name}.yaml:2: name: '{name}' is the name of an agent kind")
            for name in ("simple", "orchestrator", "react", "shout")
        ],
        *[
            ("good", f"name: good\nmodel: {model}\n", f"good.yaml:2: model: gateway.yaml has no chat model '{model}'")
            for model in ("embedder", "unknown")
        ],
        (
            "good",
            "name: good\nmodel: unknown\n",
            "Add it to gateway.yaml, or set SPASS_AGENTS to a folder of agents that use its models",
        ),
        ("other", GOOD, "other.yaml:1: name: must be the file's name, 'other'"),
        *[("good", text, "good.yaml") for text in ("", "- a", "just words", "name: good", "name: [", "name: g/d\nmodel: talker")],
    ],
)
def test_a_file_that_is_not_an_agent_is_refused(tmp_path: Path, stem: str, text: str, problem: str) -> None:
    assert problem in load_error(tmp_path, **{stem: text})


def test_one_error_reports_all_invalid_files(tmp_path: Path) -> None:
    message = load_error(tmp_path, good=GOOD, one="name: one\nmodel: talker\nfoo: 1\n", two="name: two\nmodel: unknown\n")
    files = [line.split(":")[0].rpartition("/")[2] for line in message.splitlines()]
    assert files == ["one.yaml", "two.yaml"]
    assert "good.yaml" not in message


def test_a_file_that_ends_in_yml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.yml").write_text(GOOD)
    assert "rename it to agent.yaml" in load_error(tmp_path)


def test_hidden_files_are_not_agents(tmp_path: Path) -> None:
    (tmp_path / ".good.yaml").write_text("of an editor")
    (tmp_path / ".#good.yaml").symlink_to("ada@laptop.4711")
    assert [agent.name for agent in load(tmp_path, good=GOOD).list().agents] == ["good"]


def test_an_error_names_the_file_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "other.yml").write_text(GOOD)
    files = {"bar": "name: bar\nmodel: unknown\n", "boss": delegating("boss", "boss"), "foo": "name: foo\n model: talker\n"}
    ends = {"bar.yaml:2", "boss.yaml:6", "foo.yaml:2", "other.yml"}
    for current, shown in ((folder.parent, "agents"), (folder / "..", "agents"), (ROOT, str(folder))):
        monkeypatch.chdir(current)
        assert {line.split(": ")[0] for line in load_error(folder, **files).splitlines()} == {f"{shown}/{end}" for end in ends}


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    nowhere = tmp_path.parent.parent / "nowhere"
    with pytest.raises(ConfigError) as caught:
        AgentRegistry.load(nowhere, CONFIG)
    assert str(caught.value) == f"{nowhere}: the folder does not exist; set SPASS_AGENTS to the folder of agents"


def test_a_file_instead_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "agents").write_text("")
    with pytest.raises(ConfigError, match=r"agents: the folder cannot be read \(Not a directory\)"):
        AgentRegistry.load(tmp_path / "agents", CONFIG)


@pytest.mark.parametrize("name", ["bad", "", "Good", "good\ud800", "../good"])
def test_an_unknown_agent_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(AgentNotFound) as caught:
        load(tmp_path, good=GOOD).get(name)
    caught.value.message.encode()  # a surrogate in the name must not break the answer


DIRECTOR = GOOD + "workspace: team\n"


def test_the_keys_of_a_workspace_are_read_and_shown(tmp_path: Path) -> None:
    text = DIRECTOR + "paths: {write: [src/]}\napproval: [deletes]\neditor: {timeout: 20, format: whole}\n"
    agent = load(tmp_path, good=text).get("good")
    assert agent.grants.write.matches("src/main.py")
    assert not agent.grants.write.matches("infra/main.py")
    assert agent.grants.read.matches("infra/main.py")
    shown = AgentConfig.with_defaults(agent, 5).to_dict()
    assert {name: shown[name] for name in ("workspace", "paths", "approval", "delegates", "editor")} == {
        "workspace": "team",
        "paths": {"read": ["**"], "write": ["src/"]},
        "approval": ["deletes"],
        "delegates": [],
        "editor": {"timeout": 20, "format": "whole"},
    }


def test_keys_without_effect_are_told_at_the_start(tmp_path: Path) -> None:
    text = DIRECTOR + "approval: [rag_doc_delete]\ndelegates: [other]\n"
    notices = load(tmp_path, good=text, other="name: other\nmodel: talker\n").notices
    assert [notice.message for notice in notices] == [
        "delegates: only the tool 'delegate' uses these names; add it to tools",
        "approval[0]: the agent does not have the tool 'rag_doc_delete'; add it to tools, or remove it here",
    ]


def delegating(name: str, *delegates: str) -> str:
    return f"name: {name}\nmodel: talker\nworkspace: default\ntools: [delegate]\ndelegates:\n" + "".join(
        f"  - {delegate}\n" for delegate in delegates
    )


def plain(name: str) -> str:
    return f"name: {name}\nmodel: talker\n"


def test_agents_may_delegate_to_others_as_long_as_none_leads_back(tmp_path: Path) -> None:
    files = {"a": delegating("a", "b", "c"), "b": delegating("b", "c"), "c": delegating("c", "d"), "d": plain("d")}
    assert load(tmp_path, **files).get("a").grants.delegates == ("b", "c")


def test_a_delegate_that_is_not_an_agent_is_a_problem(tmp_path: Path) -> None:
    files = {"boss": delegating("boss", "writer", "codr"), "coder": plain("coder"), "writer": plain("writer")}
    folder = tmp_path.name
    assert load_error(tmp_path, **files) == f"{folder}/boss.yaml:7: delegates[1]: there is no agent 'codr'; did you mean 'coder'?"


def test_an_agent_cannot_delegate_to_itself(tmp_path: Path) -> None:
    error = load_error(tmp_path, boss=delegating("boss", "boss"))
    assert error == f"{tmp_path.name}/boss.yaml:6: delegates[0]: an agent cannot delegate to itself; remove its own name"


def test_delegates_in_a_ring_are_a_problem_of_each_file_of_the_ring(tmp_path: Path) -> None:
    files = {"a": delegating("a", "d", "b"), "b": delegating("b", "c"), "c": delegating("c", "a"), "d": delegating("d", "b")}
    lines = load_error(tmp_path, **files).splitlines()
    ends = "leads back to this agent", "remove one of these delegates"
    assert lines == [
        f"{tmp_path.name}/{file}: delegates[{position}]: '{to}' {ends[0]} ({ring}); {ends[1]}"
        for file, position, to, ring in (
            ("a.yaml:6", 0, "d", "a → d → b → c → a"),
            ("a.yaml:7", 1, "b", "a → b → c → a"),
            ("b.yaml:6", 0, "c", "b → c → a → b"),
            ("c.yaml:6", 0, "a", "c → a → b → c"),
            ("d.yaml:6", 0, "b", "d → b → c → a → d"),
        )
    ]


def test_a_delegate_whose_own_file_is_broken_is_not_a_second_problem(tmp_path: Path) -> None:
    error = load_error(tmp_path, boss=delegating("boss", "coder"), coder="name: coder\n")
    assert error.splitlines() == [f"{tmp_path.name}/coder.yaml:1: the key 'model' is missing"]


def test_an_agent_may_run_in_a_container(tmp_path: Path) -> None:
    spec = load(tmp_path, good=f"{GOOD}container: {{timeout: 60, runtime: podman, mounts: [{tmp_path}], workspace: /work}}").get(
        "good"
    )
    assert spec.container is not None
    agent = contain(spec.build(), spec.container)
    assert (agent.agent, agent.workspace, agent.mounts) == (OrchestratorAgent(), "/work", (str(tmp_path),))
    assert (agent.runner.image, agent.runner.timeout, agent.runner.runtime) == ("spass-sandbox:latest", 60, "podman")
    assert (agent.engine, agent.model, agent.secrets, agent.bus) == (None, "", {}, None)
    assert contain(spec.build(), spec.container).runner is agent.runner, "they share one limit of containers"


def test_the_defaults_of_a_container_are_those_of_the_runner(tmp_path: Path) -> None:
    spec = load(tmp_path, good=f"{GOOD}container: {{}}").get("good")
    assert spec.container is not None
    assert contain(spec.build(), spec.container).runner == ContainerRunner()
    assert load(tmp_path, good=GOOD).get("good").container is None


@pytest.mark.parametrize(
    ("key", "notices"), [("container", []), ("sandbox", ["sandbox: this key is called container now; rename it"])]
)
def test_the_earlier_name_of_the_key_container_is_read_and_noticed(tmp_path: Path, key: str, notices: list[str]) -> None:
    agents = load(tmp_path, good=f"{GOOD}{key}: {{timeout: 60}}")
    assert agents.get("good").container == ContainerSettings(timeout=60)
    assert [notice.message for notice in agents.notices] == notices


@pytest.mark.parametrize("key", ["container", "sandbox"])
def test_a_deployed_gateway_refuses_an_agent_in_a_container(tmp_path: Path, key: str) -> None:
    (tmp_path / "good.yaml").write_text(f"{GOOD}{key}: {{}}")
    with pytest.raises(ConfigError, match=r"good\.yaml:3: .*a deployed gateway starts no containers"):
        AgentRegistry.load(tmp_path, CONFIG, deployed=True)
