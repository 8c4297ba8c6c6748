"""The six directors: their lanes, and prompts that name exactly their tools, each with an example that it accepts."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tools.registry import TOOLS, load_tool
from spass.workspaces.paths import parse_folder, parse_path

ROOT: Final = Path(__file__).parents[3]
READ: Final = ["read_file", "list_directory", "search_files"]
RAG: Final = [name for name in TOOLS if name.startswith("rag_")]
WIKIPEDIA: Final = ["wikipedia_search", "wikipedia_summary"]
DIRECTORS: Final = ["dir-code", "dir-models", "dir-data", "dir-devsecops", "dir-docs"]

LANES: Final[Mapping[str, tuple[list[str], list[str], list[str]]]] = {
    "architect": ([], ["deletes"], ["delegate"]),
    "dir-code": (["**", "!.github/", "!infra/"], ["deletes"], ["aider_edit"]),
    "dir-models": (["models/", "training/", "eval/", "configs/"], ["deletes"], ["aider_edit", "calculator"]),
    "dir-data": (["data/", "schemas/", "pipelines/"], ["deletes", "rag_index_delete"], ["aider_edit", *RAG]),
    "dir-devsecops": ([".github/", "infra/", "**/Dockerfile*", "**/*.tf"], ["deletes", "aider_edit"], ["aider_edit"]),
    "dir-docs": (["docs/", "**/*.md"], ["deletes"], ["aider_edit", "rag_query", *WIKIPEDIA]),
}
"""The paths that each may write, what waits for an approval, and the tools besides those that read."""


@pytest.fixture(scope="module")
def config() -> GatewayConfig:
    return load_gateway_config(ROOT / "gateway.yaml")


@pytest.fixture(scope="module")
def agents(config: GatewayConfig) -> AgentRegistry:
    return AgentRegistry.load(ROOT / "agents", config)


@pytest.fixture(params=LANES)
def director(request: pytest.FixtureRequest, agents: AgentRegistry) -> AgentSpec:
    return agents.get(request.param)


def prompt_of(director: AgentSpec) -> str:
    return str(director.parameters["system_prompt"])


def examples_of(director: AgentSpec) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the arguments of each example call in the prompt."""
    lines = [json.loads(line) for line in prompt_of(director).splitlines() if line.lstrip().startswith("{")]
    assert all(set(line) == {"name", "arguments"} for line in lines)
    return [(line["name"], line["arguments"]) for line in lines]


def test_each_director_has_its_lane(director: AgentSpec) -> None:
    write, approval, tools = LANES[director.name]
    grants = director.grants
    assert director.model == "ollama/qwen2.5-coder:7b-instruct"
    assert (grants.workspace, grants.paths.read) == ("default", ("**",))
    assert (list(grants.paths.write), list(grants.approval)) == (write, approval)
    assert list(grants.delegates) == (DIRECTORS if director.name == "architect" else [])
    assert sorted(director.tools) == sorted([*READ, *tools])
    assert not director.notices


def test_a_prompt_names_exactly_the_tools_of_its_agent(director: AgentSpec) -> None:
    words = set(re.findall(r"\w+", prompt_of(director)))
    assert words & set(TOOLS) == set(director.tools)


def test_each_tool_has_an_example_that_it_accepts(director: AgentSpec) -> None:
    examples = examples_of(director)
    assert {name for name, _ in examples} == set(director.tools)
    for name, arguments in examples:
        load_tool(name).model_validate_json(json.dumps(arguments))


def test_the_examples_stay_in_the_lane(director: AgentSpec) -> None:
    grants = director.grants
    for name, arguments in examples_of(director):
        match name:
            case "aider_edit":
                assert all(grants.write.matches(parse_path(path)) for path in arguments["files"])
            case "read_file":
                assert grants.read.matches(parse_path(arguments["path"]))
            case "list_directory":
                parse_folder(arguments.get("path", ""))
            case "delegate":
                assert arguments["agent"] in grants.delegates


def test_a_prompt_states_the_paths_that_its_agent_may_write(director: AgentSpec) -> None:
    folders = [pattern.lstrip("!") for pattern in director.grants.paths.write if pattern.endswith("/")]
    assert [folder for folder in folders if folder not in prompt_of(director)] == []


def test_a_prompt_leaves_the_window_to_the_work(director: AgentSpec, config: GatewayConfig) -> None:
    assert len(prompt_of(director)) / 3 < config.model(director.model).context_window / 8, "a token has at least 3 letters"


def test_the_lanes_of_the_directors_are_apart(agents: AgentRegistry) -> None:
    owners = {
        "src/main.py": {"dir-code"},
        ".github/workflows/ci.yml": {"dir-devsecops"},
        "infra/main.tf": {"dir-devsecops"},
        "configs/train.yaml": {"dir-code", "dir-models"},
        "pipelines/load.py": {"dir-code", "dir-data"},
        "docs/guide.md": {"dir-code", "dir-docs"},
        "Dockerfile": {"dir-code", "dir-devsecops"},
    }
    for path, expected in owners.items():
        assert {name for name in LANES if agents.get(name).grants.write.matches(path)} == expected
