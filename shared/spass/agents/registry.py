"""Load the agents of a folder: one YAML file each, read once per process and checked before use."""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from spass.agents.kinds.registry import KINDS, UnknownKind
from spass.agents.parameters import owners
from spass.agents.responses import AgentPage, AgentSummary
from spass.agents.spec import DEFAULT_KIND, AgentFile, AgentSpec, file_model
from spass.core.errors import AgentNotFound
from spass.core.json import replace_surrogates
from spass.core.paging import decode_cursor, encode_cursor
from spass.core.text_checks import did_you_mean, end_sentence
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_problem import ConfigProblem, display_path
from spass.tenancy.yaml_source import ConfigError, YamlSource, load_yaml, validate
from spass.tools.grants import DELETES
from spass.tools.registry import TOOLS

_GATED: Final = sorted(name for name, entry in TOOLS.items() if entry.gated)
_OF_WORKSPACES: Final = {name for name, entry in TOOLS.items() if entry.needs_workspace}
_LIST: Final = "agents"  # the scope of its cursors; agents are the same for all tenants
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_DEPLOYED: Final = "a deployed gateway starts no containers; remove this key, or run the agent on a machine of your own"
_FIX_HINT: Final = "Add it to gateway.yaml, or set SPASS_AGENTS to a folder of agents that use its models"


class AgentRegistry:
    """The agents by name."""

    def __init__(self, agents: Sequence[AgentSpec]) -> None:
        self._agents = {agent.name: agent for agent in sorted(agents, key=lambda agent: agent.name)}

    @classmethod
    def load(cls, folder: Path, config: GatewayConfig, *, deployed: bool = False) -> "AgentRegistry":
        """Return the agents in ``folder/*.yaml``. A ``deployed`` gateway refuses agents that run in containers. Raise
        ConfigError with all problems of all files."""
        agents: list[AgentSpec] = []
        problems: list[ConfigProblem] = []
        files = agent_files(folder)
        for path in files:
            try:
                agents.append(load_agent(path, config, deployed=deployed))
            except ConfigError as error:
                problems += error.problems
        by_name = {agent.name: agent for agent in agents}
        for of_agent in delegate_problems(folder, by_name, [path.stem for path in files]).values():
            problems += of_agent
        if problems:
            raise ConfigError(problems)
        return cls(agents)

    @property
    def notices(self) -> Sequence[ConfigProblem]:
        """Return the parts of files that have no effect."""
        return [notice for agent in self._agents.values() for notice in agent.notices]

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def get(self, name: str) -> AgentSpec:
        """Return the agent ``name``. Raise AgentNotFound if the agent does not exist."""
        try:
            return self._agents[name]
        except KeyError:
            shown = replace_surrogates(name)[:128]
            raise AgentNotFound(f"The agent {shown!r} does not exist. GET /a1/agents lists all agents.") from None

    def list(
        self, cursor: str | None = None, limit: int | None = None, unusable: Callable[[AgentSpec], str | None] | None = None
    ) -> AgentPage:
        """Return at most ``limit`` agents after ``cursor``, sorted by name. ``unusable`` returns why an agent cannot be used, or
        None. Raise InvalidRequest if the cursor does not belong to this list."""
        after = decode_cursor(_LIST, cursor, _NAME) if cursor is not None else ""
        names = sorted(name for name in self._agents if name > after)
        page = names[:limit]
        return AgentPage(
            agents=[
                AgentSummary.of(agent, unusable(agent) if unusable is not None else None)
                for agent in map(self._agents.__getitem__, page)
            ],
            next_cursor=encode_cursor(_LIST, page[-1]) if page != names else None,
        )


def agent_files(folder: Path) -> Sequence[Path]:
    """Return the files of agents in ``folder``, sorted by name. Hidden files belong to editors. Raise ConfigError if the folder
    cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml") and not path.name.startswith("."))
    except FileNotFoundError:
        reason = "does not exist"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    message = f"the folder {reason}; set SPASS_AGENTS to the folder of agents"
    raise ConfigError([ConfigProblem(display_path(folder), None, message)])


def load_agent(path: Path, config: GatewayConfig, *, deployed: bool = False) -> AgentSpec:
    """Return the agent in the file at ``path``. Raise ConfigError with all problems of the file."""
    if path.suffix == ".yml":
        message = f"the name of an agent's file must end in .yaml; rename it to {path.stem}.yaml"
        raise ConfigError([ConfigProblem(display_path(path), None, message)])
    source = load_yaml(path)
    agent = _read(source).spec()
    problems = [*_reference_problems(path, source, agent, config), *_container_problems(source, agent, deployed)]
    if problems:
        raise ConfigError(problems)
    try:
        accepts_tools = agent.build().accepts_tools
    except ValueError as error:  # of a kind that checks its values together
        raise ConfigError([source.problem(("kind",), str(error))]) from None
    return replace(agent, notices=tuple(_notices(source, agent, accepts_tools=accepts_tools)))


def _notices(source: YamlSource, agent: AgentSpec, *, accepts_tools: bool) -> Iterator[ConfigProblem]:
    """Yield the keys of the file that have no effect, or have another name now."""
    if agent.tools and not accepts_tools:
        message = f"the kind {agent.kind} of '{agent.name}' uses no tools; remove this key, or choose another kind"
        yield source.problem(("tools",), message)
    if agent.grants.delegates and "delegate" not in agent.tools:
        yield source.problem(("delegates",), "only the tool 'delegate' uses these names; add it to tools")
    for position, name in enumerate(agent.grants.approval):
        if name in _GATED and name not in agent.tools:
            message = f"the agent does not have the tool '{name}'; add it to tools, or remove it here"
            yield source.problem(("approval", position), message)
    if isinstance(source.data, Mapping) and "sandbox" in source.data:
        yield source.problem(("sandbox",), "this key is called container now; rename it")
    if "aider_edit" in agent.tools and not agent.grants.paths.write:
        message = "aider_edit can change no file; name the paths that it may change: paths: {write: [src/]}"
        yield source.problem(("tools", agent.tools.index("aider_edit")), message)


def _read(source: YamlSource) -> AgentFile:
    """Return the keys of the file, validated for its kind. Raise ConfigError with all problems, or only that the kind does
    not exist."""
    kind = source.data.get("kind", DEFAULT_KIND) if isinstance(source.data, Mapping) else DEFAULT_KIND
    try:
        model = file_model(kind if isinstance(kind, str) else DEFAULT_KIND)
    except UnknownKind as error:
        raise ConfigError([source.problem(("kind",), str(error))]) from None

    def advise(key: str) -> str | None:
        kinds = owners(key)
        listed = " and ".join(filter(None, [", ".join(kinds[:-1]), *kinds[-1:]]))
        return f"it is a key of the kind {listed}, and the kind of this agent is {kind}" if kinds else None

    return validate(source, model, advise)


def _reference_problems(path: Path, source: YamlSource, agent: AgentSpec, config: GatewayConfig) -> Sequence[ConfigProblem]:
    """Check what the schema cannot: the agent's name is the file's, and its models and its tools exist."""
    problems: list[ConfigProblem] = []
    if agent.name != path.stem:
        problems.append(source.problem(("name",), f"must be the file's name, '{path.stem}'; it is '{agent.name}'"))
    if KINDS.contains(agent.name):
        message = f"'{agent.name}' is the name of an agent kind, so no agent can have it; choose another name for agent and file"
        problems.append(source.problem(("name",), message))
    chat_models = [model.name for model in config.models if model.kind == "chat"]
    for key, model in (("model", agent.model), ("sub_model", agent.parameters.get("sub_model"))):
        if model is not None and model not in chat_models:
            message = end_sentence(f"gateway.yaml has no chat model '{model}'{did_you_mean(model, chat_models)}")
            problems.append(source.problem((key,), f"{message} {_FIX_HINT}"))
    for position, tool in enumerate(agent.tools):
        if tool not in TOOLS:
            problems.append(source.problem(("tools", position), f"unknown tool '{tool}'{did_you_mean(tool, list(TOOLS))}"))
    return [*problems, *_grant_problems(source, agent)]


def _grant_problems(source: YamlSource, agent: AgentSpec) -> Iterator[ConfigProblem]:
    """Yield what the tools of the agent lack, and the names in ``approval`` that cannot wait for an approval."""
    grants = agent.grants
    for position, tool in enumerate(agent.tools):
        if tool in _OF_WORKSPACES and grants.workspace is None:
            message = f"the tool '{tool}' needs a workspace; add a line such as 'workspace: default'"
            yield source.problem(("tools", position), message)
        if tool == "delegate" and not grants.delegates:
            message = "the tool 'delegate' needs the names of agents; add a line such as 'delegates: [researcher]'"
            yield source.problem(("tools", position), message)
    gates = [DELETES, *_GATED]
    for position, name in enumerate(grants.approval):
        if name not in gates:
            hint = did_you_mean(name, gates) or f"; write one of {', '.join(gates)}"
            message = f"'{name}' changes nothing that a person could approve{hint}"
            yield source.problem(("approval", position), message)


def _container_problems(source: YamlSource, agent: AgentSpec, deployed: bool) -> Iterator[ConfigProblem]:
    settings = agent.container
    if settings is None:
        return
    keys = [key for key in ("container", "sandbox") if isinstance(source.data, Mapping) and source.data.get(key) is not None]
    if len(keys) > 1:
        yield source.problem(("sandbox",), "is the earlier name of container; remove this key")
    if deployed:
        yield source.problem((keys[0],), _NOT_DEPLOYED)
        return
    from spass.sandbox.mounts import MountRefused, read_allow_list, resolve_mounts

    if settings.workspace and not (settings.workspace.startswith("/") and settings.workspace.isprintable()):
        yield source.problem((keys[0], "workspace"), "must be an absolute path in the container")
    place: tuple[str | int, ...] = (keys[0], "mount_allowlist")
    try:
        allow_list = read_allow_list(settings.mount_allowlist)
        for position, mount in enumerate(settings.mounts):
            place = (keys[0], "mounts", position)
            resolve_mounts([mount], allow_list)
    except MountRefused as refused:
        yield source.problem(place, str(refused))


def delegate_problems(folder: Path, agents: Mapping[str, AgentSpec], names: Collection[str]) -> Mapping[str, list[ConfigProblem]]:
    """Return the problems of the delegates of ``agents``, by the name of the agent. ``names`` are those of all files of
    ``folder``: a delegate whose own file has a problem is not a second problem."""
    problems: dict[str, list[ConfigProblem]] = {}
    for agent in agents.values():
        found = [
            (position, message)
            for position, name in enumerate(agent.grants.delegates)
            if (message := _delegate_problem(agent, name, agents, names)) is not None
        ]
        if found:
            source = _source(folder, agent.name)
            problems[agent.name] = [source.problem(("delegates", position), message) for position, message in found]
    return problems


def _delegate_problem(agent: AgentSpec, name: str, agents: Mapping[str, AgentSpec], names: Collection[str]) -> str | None:
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
