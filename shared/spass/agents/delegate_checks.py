"""Check the delegates of the agents of a folder together: each is an agent, and none leads back to the agent that names it."""

from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from spass.agents.spec import AgentSpec
from spass.core.text_checks import did_you_mean
from spass.tenancy.config_problem import ConfigProblem, display_path
from spass.tenancy.yaml_source import ConfigError, YamlSource, load_yaml

_KEY: Final = "delegates"


def delegate_problems(folder: Path, agents: Mapping[str, AgentSpec], names: Collection[str]) -> Mapping[str, list[ConfigProblem]]:
    """Return the problems of the delegates of ``agents``, by the name of the agent. ``names`` are those of all files of
    ``folder``: a delegate whose own file has a problem is not a second problem."""
    problems: dict[str, list[ConfigProblem]] = {}
    for agent in agents.values():
        found = [
            (position, message)
            for position, name in enumerate(agent.grants.delegates)
            if (message := _problem(agent, name, agents, names)) is not None
        ]
        if found:
            source = _source(folder, agent.name)
            problems[agent.name] = [source.problem((_KEY, position), message) for position, message in found]
    return problems


def _problem(agent: AgentSpec, name: str, agents: Mapping[str, AgentSpec], names: Collection[str]) -> str | None:
    if name == agent.name:
        return "an agent cannot delegate to itself; remove its own name"
    if name not in names:
        return f"there is no agent '{name}'{did_you_mean(name, sorted({*names} - {agent.name}))}"
    if (way := _way_back(agents, name, agent.name)) is not None:
        return f"'{name}' leads back to this agent ({' → '.join([agent.name, *way])}); remove one of these delegates"
    return None


def _way_back(agents: Mapping[str, AgentSpec], start: str, end: str) -> list[str] | None:
    """Return the shortest way over delegates from ``start`` to ``end``, or None if there is none."""
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for delegate in agents[name].grants.delegates if name in agents else ():
            if delegate in came_from or delegate == start:
                continue
            came_from[delegate] = name
            if delegate == end:
                way = [end]
                while way[0] != start:
                    way.insert(0, came_from[way[0]])
                return way
            waiting.append(delegate)
    return None


def _source(folder: Path, name: str) -> YamlSource:
    """Return the file of an agent, whose lines the messages name. It may have changed since it was read."""
    path = folder / f"{name}.yaml"
    try:
        return load_yaml(path)
    except ConfigError:
        return YamlSource(display_path(path), None, {})
