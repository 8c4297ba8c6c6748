"""The agent kinds by key. A built-in kind is a line in ``BUILT_IN``; the decorator ``KINDS.register`` adds others."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Final, TypeVar

from spass.agents.kinds.base import BaseAgent
from spass.core.text_checks import did_you_mean

A = TypeVar("A", bound=BaseAgent)

BUILT_IN: Final = {
    "simple": "spass.agents.kinds.simple.SimpleAgent",
    "orchestrator": "spass.agents.kinds.orchestrator.OrchestratorAgent",
    "native_react": "spass.agents.kinds.native_react.NativeReActAgent",
    "native_openhands": "spass.agents.kinds.native_openhands.NativeOpenHandsAgent",
    "rlm": "spass.agents.kinds.rlm.RLMAgent",
    "openhands": "spass.agents.kinds.openhands.OpenHandsAgent",
    "claude_code": "spass.agents.kinds.claude_code.ClaudeCodeAgent",
    "operative": "spass.agents.kinds.operative.OperativeAgent",
    "monitor_operative": "spass.agents.kinds.monitor_operative.MonitorOperativeAgent",
}
_ALIASES: Final[Mapping[str, str]] = {"react": "native_react"}
FILE_KEYS: Final = frozenset(
    {
        "name",
        "kind",
        "model",
        "description",
        "tools",
        "rag_index",
        "rag_top_k",
        "workspace",
        "paths",
        "approval",
        "delegates",
        "editor",
        "container",
        "sandbox",
    }
)
"""The keys of an agent's file that are not parameters of its kind."""

_KEY: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class UnknownKind(KeyError):
    """No kind has this key. The message names the most similar key."""

    def __str__(self) -> str:
        return str(self.args[0])


class KindRegistry:
    """The classes of agent kinds. ``built_in`` maps keys to the import paths of classes. ``aliases`` maps further keys to keys of
    ``built_in``."""

    def __init__(self, built_in: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self._built_in = built_in
        self._aliases = {alias: key for alias, key in aliases.items() if key in built_in}
        self._registered: dict[str, type[BaseAgent]] = {}

    def register(self, key: str) -> Callable[[type[A]], type[A]]:
        """Return a class decorator that adds a kind. Raise ValueError if the key is in use or could not be the name of an agent,
        or a parameter has the name of another key of an agent's file, and TypeError if the class is not a complete
        ``BaseAgent``."""

        def add(kind: type[A]) -> type[A]:
            if not _KEY.fullmatch(key):
                raise ValueError(f"'{key}' cannot be the key of a kind; use at most 64 letters, digits, '_' and '-'")
            if self.contains(key):
                raise ValueError(f"the kind '{key}' exists already; register the class under another key")
            if not issubclass(kind, BaseAgent):
                raise TypeError(f"{kind.__name__} must extend BaseAgent")
            if kind.__abstractmethods__:
                raise TypeError(f"{kind.__name__} must define {' and '.join(sorted(kind.__abstractmethods__))}")
            if taken := [field.name for field in fields(kind) if field.name in FILE_KEYS]:
                raise ValueError(f"a parameter of the kind '{key}' cannot be named '{taken[0]}', which agents' files use already")
            self._registered[key] = kind
            return kind

        return add

    def contains(self, key: str) -> bool:
        """Return True if ``key`` is a kind or an alias of one."""
        return key in self._built_in or key in self._aliases or key in self._registered

    def canonical(self, key: str) -> str:
        """Return the key of the kind that ``key`` names: ``native_react`` for its alias ``react``. Raise UnknownKind if no kind
        has this key."""
        if not self.contains(key):
            raise UnknownKind(f"there is no agent kind '{key}'{did_you_mean(key, self.keys())}")
        return self._aliases.get(key, key)

    def get(self, key: str) -> type[BaseAgent]:
        """Return the class of the kind. The first call imports a built-in kind. Raise UnknownKind if no kind has this key."""
        key = self.canonical(key)
        if key in self._registered:
            return self._registered[key]
        module, _, name = self._built_in[key].rpartition(".")
        kind: type[BaseAgent] = getattr(import_module(module), name)
        return kind

    def keys(self) -> Sequence[str]:
        """Return all keys: the built-in ones, each followed by its aliases, then the registered ones."""
        keys: list[str] = []
        for built_in in self._built_in:
            keys += [built_in, *(alias for alias, key in self._aliases.items() if key == built_in)]
        return [*keys, *self._registered]


KINDS: Final = KindRegistry(BUILT_IN, _ALIASES)
