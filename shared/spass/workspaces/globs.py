"""Glob patterns over whole paths, matched in time that is linear in the length of the path.

``*`` matches within a segment, ``**`` across segments, and ``**/`` also no segment. A slash at the end matches everything below.
A pattern that begins with ``!`` excludes paths, also those that other patterns match. All other characters match themselves.

All patterns together are one nondeterministic automaton. Its state is a set of positions, as the bits of a number. Its steps are
cached as the nodes of a deterministic automaton while paths are matched (https://swtch.com/~rsc/regexp/regexp1.html). A regular
expression with several stars could take time that is exponential in their number.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

from spass.workspaces.paths import MAX_PATH_BYTES, has_invisible, show

MAX_PATTERNS: Final = 200
_MAX_NODES: Final = 4096
"""Nodes that are cached. At this number the cache is emptied."""
_MAX_FOLLOWING: Final = 256
"""Characters of a node whose next node is cached."""

_SYMBOL: Final = re.compile(r"(?<![^/])\*\*/|\*\*|\*|[^*]", re.DOTALL)


class _Node(NamedTuple):
    """A state of the automaton, with the nodes that follow it. ``decided`` is the answer for every path that reaches the node, if
    there is one; else ``matches`` is the answer for a path that ends here."""

    positions: int
    decided: bool | None
    matches: bool
    following: "dict[str, _Node]"


class Globs:
    """Patterns that a path matches if one of them matches and none excludes it. No pattern matches nothing.

    The positions of all patterns are the bits of one number. A position is before a symbol or at the end of a pattern.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns: Final = tuple(patterns)
        self._size = 0
        self._start = 0
        self._stay_at_slash = 0  # the positions of "**"
        self._stay_at_others = 0  # the positions of "*" and "**"
        self._literals: dict[str, int] = {}
        self._skip_one = 0  # positions from which the next one is reached without a character
        self._skip_three = 0  # positions before "**/", which takes three
        self._ends = {True: 0, False: 0}  # of the patterns that include (True) and exclude (False)
        self._alive = {True: 0, False: 0}  # their positions other than ends
        self._all_below = {True: 0, False: 0}  # the positions of their "**" at the end
        for pattern in self.patterns:
            self._add(pattern.removeprefix("!"), includes=not pattern.startswith("!"))
        self._nodes: dict[int, _Node] = {}

    @classmethod
    def parse(cls, patterns: Sequence[str]) -> "Globs":
        """Read ``patterns``.

        Raises:
            ValueError: one of them is not valid. The message says what to write instead.
        """
        if len(patterns) > MAX_PATTERNS:
            raise ValueError(f"there are {len(patterns)} patterns; write at most {MAX_PATTERNS}")
        for pattern in patterns:
            _check_pattern(pattern)
        if patterns and all(pattern.startswith("!") for pattern in patterns):
            raise ValueError('every pattern excludes; name first what to include, as in ["**", "!secrets/"]')
        return cls(patterns)

    def matches(self, path: str) -> bool:
        node = self._read(path)
        return node.matches if node.decided is None else node.decided

    @property
    def matches_everything(self) -> bool:
        """Return True if every path matches, as with ``**``."""
        return self._read("").decided is True

    def may_contain(self, folder: str) -> bool:
        """Return whether a path below ``folder`` can match. "" is the root."""
        node = self._read(f"{folder}/" if folder else "")
        return bool(node.positions & self._alive[True]) if node.decided is None else node.decided

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Globs) and self.patterns == other.patterns

    def __hash__(self) -> int:
        return hash(self.patterns)

    def __repr__(self) -> str:
        return f"Globs.parse({[*self.patterns]!r})"

    def _add(self, pattern: str, *, includes: bool) -> None:
        first = self._size
        self._start |= 1 << first
        symbols = _SYMBOL.findall(f"{pattern}**" if pattern.endswith("/") else pattern)
        for symbol in symbols:
            if symbol == "**/":
                self._skip_one |= 1 << self._size
                self._skip_three |= 1 << self._size
                self._size += 1
                self._add_symbol("**")
                self._add_symbol("/")
            else:
                self._add_symbol(symbol)
        end = 1 << self._size
        if symbols[-1] == "**":
            self._all_below[includes] |= end >> 1
        self._ends[includes] |= end
        self._alive[includes] |= end - (1 << first)
        self._size += 1

    def _add_symbol(self, symbol: str) -> None:
        position = 1 << self._size
        if symbol in ("*", "**"):
            self._skip_one |= position
            self._stay_at_others |= position
            self._stay_at_slash |= position if symbol == "**" else 0
        else:
            self._literals[symbol] = self._literals.get(symbol, 0) | position
        self._size += 1

    def _read(self, text: str) -> _Node:
        """Return the first node that decides, or the node at the end of ``text``."""
        node = self._node(self._start)
        for character in text:
            if node.decided is not None:
                break
            node = node.following.get(character) or self._step(node, character)
        return node

    def _step(self, node: _Node, character: str) -> _Node:
        if len(self._nodes) > _MAX_NODES:
            self._nodes = {}  # a node that another thread reads stays usable
        stay = self._stay_at_slash if character == "/" else self._stay_at_others
        moved = (node.positions & self._literals.get(character, 0)) << 1
        following = self._node(node.positions & stay | moved)
        if len(node.following) < _MAX_FOLLOWING:
            node.following[character] = following
        return following

    def _node(self, positions: int) -> _Node:
        """Return the node of ``positions`` and of those that they reach without a character."""
        found = self._nodes.get(positions)
        if found is None:
            found = self._nodes[positions] = self._make_node(self._close(positions))
        return found

    def _close(self, positions: int) -> int:
        while True:
            reached = positions | (positions & self._skip_one) << 1 | (positions & self._skip_three) << 3
            if reached == positions:
                return positions
            positions = reached

    def _make_node(self, positions: int) -> _Node:
        can_include = positions & (self._alive[True] | self._ends[True])
        can_exclude = positions & (self._alive[False] | self._ends[False])
        decided = None
        if not can_include or positions & self._all_below[False]:
            decided = False
        elif not can_exclude and positions & self._all_below[True]:
            decided = True
        matches = bool(positions & self._ends[True] and not positions & self._ends[False])
        return _Node(positions, decided, matches, {})


def _check_pattern(pattern: str) -> None:
    """Check that some path can match ``pattern``."""
    body = pattern.removeprefix("!")
    problem = None
    if not body:
        problem = 'it names nothing; write a path such as "src/main.py" or a pattern such as "src/**"'
    elif len(pattern.encode("utf-8", "replace")) > MAX_PATH_BYTES:
        problem = f"it has more than {MAX_PATH_BYTES} bytes of UTF-8"
    elif body.startswith("!"):
        problem = 'write one "!" to exclude'
    elif body.startswith("/"):
        problem = f"paths do not begin with a slash; write {show(body.lstrip('/') or '**')}"
    elif "\\" in body:
        problem = 'separate folders by "/", not by a backslash'
    elif "***" in body:
        problem = 'write "*" for a part of a name or "**" for any folders'
    elif has_invisible(body):
        problem = "it holds a control, format or invisible character"
    elif unicodedata.normalize("NFC", body) != body:
        problem = f"it is not in Unicode's form NFC; write {show(unicodedata.normalize('NFC', pattern))}"
    elif not {"", ".", ".."}.isdisjoint(body.removesuffix("/").split("/")):
        problem = 'no path has an empty segment, "." or ".."; write the path from the root of the workspace'
    if problem:
        raise ValueError(f"the pattern {show(pattern)} matches no path: {problem}")
