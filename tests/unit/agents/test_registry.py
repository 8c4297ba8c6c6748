"""Test that the gateway does not start with an invalid agent file, and that the error names the file, the line and the reason."""

from pathlib import Path

import pytest

from spass.agents.registry import AgentRegistry
from spass.core.errors import AgentNotFound
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.yaml_source import ConfigError

CONFIG = GatewayConfig(
    models=(
        ModelConfig(name="talker", context_window=1000),
        ModelConfig(name="embedder", kind="embedding", context_window=1000, dimensions=8),
    )
)
GOOD = "name: good\nmodel: talker\n"


def load(folder: Path, **files: str) -> AgentRegistry:
    for stem, text in files.items():
        (folder / f"{stem}.yaml").write_text(text, encoding="utf-8")
    return AgentRegistry.load(folder, CONFIG, ["calculator", "rag_query"])


def load_error(folder: Path, **files: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, **files)
    return str(caught.value)


def test_a_name_and_a_model_are_enough(tmp_path: Path) -> None:
    agent = load(tmp_path, good=GOOD).get("good")
    assert (agent.kind, agent.max_turns, agent.rag_top_k, agent.tools, agent.rag_index) == ("orchestrator", 10, None, (), None)
    assert agent.max_tokens is None
    assert agent.temperature is None


@pytest.mark.parametrize(
    ("addition", "line", "reason"),
    [
        ("temprature: 1", 3, "unknown key 'temprature'; did you mean 'temperature'?"),
        ("tools: [calculater]", 3, "unknown tool 'calculater'; did you mean 'calculator'?"),
        ("tools:\n  - calculator\n  - nothing", 5, "unknown tool 'nothing'"),
        ("tools: [calculator, calculator]", 3, "twice"),
        ("tools: calculator", 3, "must be a list"),
        ("tools: [1]", 3, "must be text"),
        ("kind: native_react", 3, "'native_react' is not an agent kind of this version; write orchestrator"),
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
    ],
)
def test_an_error_names_file_line_and_reason(tmp_path: Path, addition: str, line: int, reason: str) -> None:
    message = load_error(tmp_path, good=GOOD + addition)
    assert f"good.yaml:{line}:" in message
    assert reason in message


@pytest.mark.parametrize("model", ["embedder", "unknown"])
def test_a_model_must_be_a_chat_model_of_the_catalogue(tmp_path: Path, model: str) -> None:
    assert f"good.yaml:2: model: gateway.yaml has no chat model '{model}'" in load_error(
        tmp_path, good=f"name: good\nmodel: {model}\n"
    )


def test_the_error_for_an_unknown_model_suggests_to_set_the_agents_folder(tmp_path: Path) -> None:
    message = load_error(tmp_path, good=GOOD.replace("talker", "unknown"))
    assert "Add it to gateway.yaml, or set SPASS_AGENTS to a folder of agents that use its models" in message


def test_the_name_must_equal_the_name_of_the_file(tmp_path: Path) -> None:
    assert "other.yaml:1: name: must be the file's name, 'other'" in load_error(tmp_path, other=GOOD)


@pytest.mark.parametrize("text", ["", "- a", "just words", "name: good", "name: [", "name: g/d\nmodel: talker"])
def test_a_file_that_is_not_an_agent_is_refused(tmp_path: Path, text: str) -> None:
    assert "good.yaml" in load_error(tmp_path, good=text)


def test_one_error_reports_all_invalid_files(tmp_path: Path) -> None:
    message = load_error(tmp_path, good=GOOD, one="name: one\nmodel: unknown\n", two="name: two\nmodel: talker\nfoo: 1\n")
    assert "one.yaml" in message
    assert "two.yaml" in message
    assert "good.yaml" not in message


def test_a_file_that_ends_in_yml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.yml").write_text(GOOD)
    assert "rename it to agent.yaml" in load_error(tmp_path)


def test_hidden_files_are_not_agents(tmp_path: Path) -> None:
    (tmp_path / ".good.yaml").write_text("of an editor")
    (tmp_path / ".#good.yaml").symlink_to("ada@laptop.4711")
    assert [agent.name for agent in load(tmp_path, good=GOOD).list().agents] == ["good"]


def test_an_error_names_the_file_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "other.yml").write_text(GOOD)
    message = load_error(folder, bar="name: bar\nmodel: unknown\n", foo="name: foo\n model: talker\n").splitlines()
    assert {line.split(": ")[0] for line in message} == {"agents/bar.yaml:2", "agents/foo.yaml:2", "agents/other.yml"}


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SPASS_AGENTS"):
        AgentRegistry.load(tmp_path / "nowhere", CONFIG, [])


def test_a_file_instead_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "agents").write_text("")
    with pytest.raises(ConfigError, match=r"agents: the folder .* cannot be read \(Not a directory\)"):
        AgentRegistry.load(tmp_path / "agents", CONFIG, [])


@pytest.mark.parametrize("name", ["bad", "", "Good", "good\ud800", "../good"])
def test_an_unknown_agent_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(AgentNotFound) as caught:
        load(tmp_path, good=GOOD).get(name)
    caught.value.message.encode()  # a surrogate in the name must not break the answer
