"""Apply changes of the agents' files while the gateway runs on this machine. Deployed functions read the files once."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from spass.agents.registry import AgentRegistry, agent_files, delegate_problems, load_agent
from spass.agents.spec import AgentSpec
from spass.redaction.log import failure_line, write_line
from spass.tenancy.config_problem import display_path
from spass.tenancy.yaml_source import ConfigError
from spass.web.services import Services

_POLL_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 3.0


class _Version(NamedTuple):
    """What changes when a file is written or replaced. The times are in nanoseconds."""

    modified: int
    changed: int
    size: int
    inode: int


_UNREADABLE: Final = _Version(-1, -1, -1, -1)  # such as a link to a missing file
_FROM_START: Final = _Version(0, 0, 0, 0)


class AgentReload:
    """Replace ``services.agents`` when files of the folder change, and report what happened as lines.

    A request looks its agent up once, so it sees the agents before a change or after it. A broken file leaves the last good
    version of its agent in use, and a missing folder leaves all agents. A file with a delegate that is not an agent is broken
    until that agent's file is there.
    """

    def __init__(self, services: Services, report: Callable[[Sequence[str]], None]) -> None:
        self._services = services
        self._folder = services.settings.agents
        self._report = report
        names = [agent.name for agent in services.agents.list().agents]
        self._agents = {f"{name}.yaml": services.agents.get(name) for name in names}  # the last good version for each file
        self._read = dict(self._agents)  # the newest version without a problem of its own; its delegates may have one
        self._pending: set[str] = set()  # the files whose newest version is not in use yet
        self._applied: dict[str, _Version] = dict.fromkeys(self._agents, _FROM_START)  # the versions that were loaded
        self._seen = dict(self._applied)
        self._broken: set[str] = set()
        self._problems_of_delegates: dict[str, Sequence[str]] = {}
        self._folder_problem = ""

    def poll(self) -> None:
        """Apply each change that an earlier poll has seen already. Until then, an editor may still be writing the file."""
        try:
            seen = {path.name: _version(path) for path in agent_files(self._folder)}
        except ConfigError as error:
            if str(error) != self._folder_problem:
                self._folder_problem = str(error)
                self._report([f"  {error}", "  The agents stay as they were."])
            return
        before, self._seen, self._folder_problem = self._seen, seen, ""
        lines: dict[str, Sequence[str]] = {}
        good, applied = dict(self._agents), dict(self._applied)
        try:
            for file in sorted({*seen, *self._applied}):
                version = seen.get(file)
                if version == before.get(file) and version != self._applied.get(file):
                    lines[file] = self._remove(file) if version is None else self._load(file, version)
        finally:  # a kind that fails while it is built must not hold up the other files
            if self._applied != applied:
                lines |= self._apply()
            if self._agents != good:
                self._services.agents = AgentRegistry([*self._agents.values()])
            if any(lines.values()):
                self._report([f"  {line}" for file in sorted(lines) for line in lines[file]])

    def _remove(self, file: str) -> Sequence[str]:
        del self._applied[file]
        self._broken.discard(file)
        self._pending.discard(file)
        self._read.pop(file, None)
        self._problems_of_delegates.pop(file, None)
        return [f"{self._shown(file)}: the agent is removed"] if self._agents.pop(file, None) else []

    def _load(self, file: str, version: _Version) -> Sequence[str]:
        self._applied[file] = version
        path = self._folder / file
        agent: AgentSpec | None = None
        problems: Sequence[str] = ()
        try:
            agent = load_agent(path, self._services.config)
        except ConfigError as error:
            problems = str(error).splitlines()
        if _version(path) != version:
            return []  # it was written meanwhile: a later poll loads it
        old = self._agents.get(file)
        if agent is None:
            self._broken.add(file)
            self._pending.discard(file)
            self._read.pop(file, None)
            if old is not None:
                self._read[file] = old
            return [*problems, self._kept(file)]
        self._read[file] = agent
        if agent != old or file in self._broken:
            self._pending.add(file)
        self._broken.discard(file)
        return []

    def _apply(self) -> Mapping[str, Sequence[str]]:
        """Use the newest versions whose delegates are agents. Return the lines about each file."""
        names = [Path(file).stem for file in self._applied]
        problems = delegate_problems(self._folder, {agent.name: agent for agent in self._read.values()}, names)
        lines: dict[str, Sequence[str]] = {}
        for file, agent in self._read.items():
            told = self._problems_of_delegates.pop(file, ())
            if agent.name in problems:
                self._problems_of_delegates[file] = [str(problem) for problem in problems[agent.name]]
                if told != self._problems_of_delegates[file]:
                    lines[file] = [*self._problems_of_delegates[file], self._kept(file)]
            elif file in self._pending:
                self._pending.discard(file)
                effect = "the agent is new" if file not in self._agents else "the file is applied"
                self._agents[file] = agent
                lines[file] = [*map(str, agent.notices), f"{self._shown(file)}: {effect}"]
        return lines

    def _kept(self, file: str) -> str:
        effect = "its last good version stays in use" if file in self._agents else "it is not used"
        return f"{self._shown(file)}: {effect} until the file is correct"

    def _shown(self, file: str) -> str:
        return display_path(self._folder / file)


@contextmanager
def reloading_agents(services: Services) -> Iterator[None]:
    """Poll the folder of agents in a thread until the block ends. Print the reports."""
    stop = threading.Event()
    reload = AgentReload(services, _print_lines)

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            try:
                reload.poll()
            except Exception as error:  # noqa: BLE001 (the edge of the thread: a kind's own code may raise anything)
                write_line({**failure_line(error, ""), "event": "agent_reload_failed"})

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOP_SECONDS)


def _version(path: Path) -> _Version:
    try:
        status = path.stat()
    except OSError:
        return _UNREADABLE
    return _Version(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _print_lines(lines: Sequence[str]) -> None:
    # The terminal may be closed. The gateway continues without it.
    with suppress(OSError):
        print("\n".join(lines), flush=True)
