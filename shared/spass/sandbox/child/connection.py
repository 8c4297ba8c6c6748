"""Exchange lines with the parent over two pipes."""

from __future__ import annotations

from posix import O_RDWR, _exit, dup, dup2, open, read, write  # noqa: A004

from spass.sandbox.child.codec import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from spass.sandbox.child.codec import Json

_CHUNK = 1 << 16


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
