"""The bundled agents and the bundled configuration are valid and fit each other."""

from pathlib import Path

import pytest

from spass.agents.registry import AgentRegistry
from spass.agents.responses import AgentConfig
from spass.tenancy.config_file import load_gateway_config

ROOT = Path(__file__).parents[3]

# The folder may also contain the operator's own agents, which these tests must ignore.
BUNDLED = frozenset({"concise-de", "berlin-tour", "berlin-rag", "researcher", "researcher-rag", "librarian", "logbook"})


@pytest.fixture(scope="module")
def agents() -> AgentRegistry:
    return AgentRegistry.load(ROOT / "agents", load_gateway_config(ROOT / "gateway.yaml"))


@pytest.mark.parametrize(
    ("name", "model", "tools", "rag_index"),
    [
        ("concise-de", "llama-4-scout", [], None),
        ("berlin-tour", "llama-4-scout", [], None),
        ("berlin-rag", "llama-4-scout", [], "berlin-info"),
        ("researcher", "claude-opus-4.7", ["calculator", "current_datetime", "wikipedia_search", "wikipedia_summary"], None),
        ("researcher-rag", "claude-opus-4.7", ["calculator", "current_datetime", "wikipedia_search"], "matrix-rag-idx"),
        ("librarian", "claude-opus-4.7", ["rag_query"], None),
    ],
)
def test_each_bundled_agent_equals_that_of_the_predecessor(
    agents: AgentRegistry, name: str, model: str, tools: list[str], rag_index: str | None
) -> None:
    agent = agents.get(name)
    assert (agent.kind, agent.model, list(agent.tools), agent.rag_index) == ("orchestrator", model, tools, rag_index)
    assert agent.description
    assert agent.build().system_prompt


def test_the_logbook_is_an_operator_with_a_memory(agents: AgentRegistry) -> None:
    logbook = agents.get("logbook")
    assert (logbook.kind, logbook.operator_id) == ("operative", "logbook")
    assert {"memory_store", "memory_search"} <= {*logbook.tools}


def test_bundled_agents_set_only_parameters_that_their_models_receive(agents: AgentRegistry) -> None:
    config = load_gateway_config(ROOT / "gateway.yaml")
    files = {name: (ROOT / "agents" / f"{name}.yaml").read_text(encoding="utf-8") for name in BUNDLED}
    without_sampling = [name for name in BUNDLED if not config.model(agents.get(name).model).sampling]
    assert without_sampling
    assert not [name for name in without_sampling if "\ntemperature:" in files[name]]


def test_all_are_listed(agents: AgentRegistry) -> None:
    assert {entry.name for entry in agents.list().agents} >= BUNDLED


def test_the_list_shows_the_main_fields(agents: AgentRegistry) -> None:
    assert {frozenset(entry.to_dict()) for entry in agents.list().agents} == {
        frozenset({"name", "description", "model", "kind", "tools", "rag_index", "usable", "unusable_reason"})
    }


def test_the_full_config_contains_every_field_with_its_default(agents: AgentRegistry) -> None:
    config = AgentConfig.with_defaults(agents.get("berlin-rag"), rag_top_k=7).to_dict()
    assert (config["max_turns"], config["max_tokens"], config["temperature"]) == (10, 512, 0.3)
    assert config["rag_top_k"] == 3
    assert config["tools"] == []
    assert AgentConfig.with_defaults(agents.get("berlin-tour"), rag_top_k=7).rag_top_k == 7
