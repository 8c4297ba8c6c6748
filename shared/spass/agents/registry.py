"""Load the agents of a folder: one YAML file each, read once per process and checked before use."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from spass.agents.answers import AgentPage, AgentSummary
from spass.agents.spec import AgentSpec
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import AgentNotFound
from spass.core.json import replace_surrogates
from spass.core.text_checks import did_you_mean, end_sentence
from spass.tenancy.config import GatewayConfig
from spass.tenancy.yaml_source import ConfigError, ConfigProblem, YamlSource, load_yaml, validate

_LIST: Final = "agents"  # one list for all: agents belong to no tenant
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIX_HINT: Final = "Add it to gateway.yaml, or set SPASS_AGENTS to a folder of agents that use its models"


class AgentRegistry:
    """Every agent by name."""

    def __init__(self, agents: Sequence[AgentSpec]) -> None:
        self._agents = {agent.name: agent for agent in sorted(agents, key=lambda agent: agent.name)}

    @classmethod
    def load(cls, folder: Path, config: GatewayConfig, tool_names: Collection[str]) -> "AgentRegistry":
        """Return the agents in ``folder/*.yaml``.

        Raises:
            ConfigError: it lists every problem of every file.
        """
        if not folder.is_dir():
            raise ConfigError(
                [ConfigProblem(folder.name, None, f"there is no folder {folder}; name the folder of agents in SPASS_AGENTS")]
            )
        agents: list[AgentSpec] = []
        problems: list[ConfigProblem] = []
        for path in sorted(folder.iterdir()):
            try:
                if path.suffix == ".yml":
                    raise ConfigError(
                        [
                            ConfigProblem(
                                _display_path(path), None, f"an agent's file ends in .yaml; rename it to {path.stem}.yaml"
                            )
                        ]
                    )
                if path.suffix == ".yaml":
                    agents.append(_load(path, config, tool_names))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return cls(agents)

    def get(self, name: str) -> AgentSpec:
        """Return the agent ``name``.

        Raises:
            AgentNotFound: there is no such agent.
        """
        try:
            return self._agents[name]
        except KeyError:
            raise AgentNotFound(f"There is no agent {_display_name(name)!r}. GET /a1/agents lists them.") from None

    def list(self, cursor: str | None = None, limit: int | None = None) -> AgentPage:
        """Return at most ``limit`` agents after ``cursor``, sorted by name.

        Raises:
            InvalidRequest: the cursor is not of this list.
        """
        after = decode_cursor(_LIST, cursor, _NAME) if cursor is not None else ""
        names = sorted(name for name in self._agents if name > after)
        page = names[:limit]
        return AgentPage(
            agents=[AgentSummary.of(self._agents[name]) for name in page],
            next_cursor=encode_cursor(_LIST, page[-1]) if page != names else None,
        )


def _load(path: Path, config: GatewayConfig, tool_names: Collection[str]) -> AgentSpec:
    source = load_yaml(path, shown=_display_path(path))
    agent = validate(source, AgentSpec)
    if problems := _reference_problems(path, source, agent, config, tool_names):
        raise ConfigError(problems)
    return agent


def _reference_problems(
    path: Path, source: YamlSource, agent: AgentSpec, config: GatewayConfig, tool_names: Collection[str]
) -> Sequence[ConfigProblem]:
    """Return the problems of a well-formed file: a wrong name, or a model or tools that do not exist."""
    problems: list[ConfigProblem] = []
    if agent.name != path.stem:
        problems.append(source.problem(("name",), f"must be the file's name, '{path.stem}'; it is '{agent.name}'"))
    chat_models = [model.name for model in config.models if model.kind == "chat"]
    if agent.model not in chat_models:
        message = end_sentence(f"gateway.yaml has no chat model '{agent.model}'{did_you_mean(agent.model, chat_models)}")
        problems.append(source.problem(("model",), f"{message} {_FIX_HINT}"))
    for position, tool in enumerate(agent.tools):
        if tool not in tool_names:
            problems.append(source.problem(("tools", position), f"unknown tool '{tool}'{did_you_mean(tool, list(tool_names))}"))
    return problems


def _display_path(path: Path) -> str:
    return str(Path(path.parent.name, path.name))


def _display_name(name: str) -> str:
    return replace_surrogates(name)[:128]
