"""Exchange lines of JSON with the parent over two pipes.

The encoder and the scanner are those below the module ``json``, which itself imports ``re`` and so doubles the time of a start.
Code that replaces functions of ``json`` does not change these.
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner
from posix import O_RDWR, _exit, dup, dup2, open, read, write  # noqa: A004

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn, TypeAlias

    Json: TypeAlias = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

_CHUNK = 1 << 16


class _Rules:
    """The options that the scanner reads from its context."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 (the scanner clears it after each text)


_scan = make_scanner(_Rules())  # type: ignore[arg-type]  # it reads the attributes alone


def _refuse(value: object) -> object:
    raise TypeError(f"a value of the type {type(value).__name__} is not JSON")


def encode(value: object) -> str:
    """Return ``value`` as JSON in one line.

    Raises:
        TypeError: the value contains something that JSON cannot express.
        ValueError: it contains itself, NaN or an infinity.
        RecursionError: it is nested too deeply.
    """
    encoder = make_encoder({}, _refuse, encode_basestring, None, ": ", ", ", False, False, False)
    return "".join(encoder(value, 0))


def decode(text: str) -> Any:  # noqa: ANN401 (a JSON value)
    """Return the value of a JSON text without white space around it."""
    value, end = _scan(text, 0)
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


class Connection:
    """Lines of JSON on descriptors that code does not know.

    The lines of the child begin with the token of the start line, and each follows a line break. So bytes that code writes to
    the descriptor do not become a line of the child, and do not spoil the next one.
    """

    def __init__(self) -> None:
        """Move the pipes away from stdin and stdout. Those then lead nowhere, and so does stderr."""
        self._input = dup(0)
        self._output = dup(1)
        nowhere = open("/dev/null", O_RDWR)
        for descriptor in (0, 1, 2):
            dup2(nowhere, descriptor)
        self.descriptors = (self._input, self._output)
        self._rest = b""
        self._token = ""

    def receive_start(self) -> dict[str, Any]:
        """Return the start line, whose token all lines of the child will carry."""
        start = self.receive()
        if start is None:
            _exit(0)
        self._token = start["token"]
        return start

    def receive(self) -> dict[str, Any] | None:
        """Return the next line of the parent, or None if the parent has closed the pipe."""
        chunks = [self._rest]
        while b"\n" not in chunks[-1]:
            chunk = read(self._input, _CHUNK)
            if not chunk:
                return None
            chunks.append(chunk)
        end, _, self._rest = chunks.pop().partition(b"\n")
        line: dict[str, Any] = decode(b"".join((*chunks, end)).decode())
        return line

    def send(self, kind: str, value: Json) -> None:
        """Write one line ``{kind: value}``. End the process if the parent does not read any more."""
        rest = memoryview(f"\n{self._token} {encode({kind: value})}\n".encode("utf-8", "replace"))
        try:
            while rest:
                rest = rest[write(self._output, rest) :]
        except OSError:
            _exit(1)

    def end(self, kind: str, value: Json) -> NoReturn:
        """Write a last line and end the process at once, without a chance for code to go on."""
        self.send(kind, value)
        _exit(0)
