"""Keep what a cell prints, up to a limit."""

from __future__ import annotations

import io
from codecs import getincrementaldecoder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Data

_CHUNK = 1 << 16


class Output:
    """The first characters of a text. The others are counted, not kept."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, limit: int) -> None:
        """Forget the text. Keep at most ``limit`` characters of the next one."""
        self._room = limit
        self._kept: list[str] = []
        self.truncated = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    @property
    def text(self) -> str:
        return "".join(self._kept)

    def add(self, text: str) -> None:
        if self._room and text:
            self._kept.append(text[: self._room])
        kept = min(self._room, len(text))
        self._room -= kept
        self.truncated += len(text) - kept

    def add_bytes(self, data: Data) -> int:
        """Add UTF-8 and return its number of bytes."""
        with memoryview(data).cast("B") as view:
            for start in range(0, len(view), _CHUNK):
                self.add(self._decoder.decode(view[start : start + _CHUNK]))
            return len(view)


class BinaryStream(io.BufferedIOBase):
    """``sys.stdout.buffer``."""

    def __init__(self, output: Output, descriptor: int) -> None:
        self._output = output
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Data) -> int:
        return self._output.add_bytes(data)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Stay open: other code prints, too."""


class TextStream(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr`` of cells."""

    encoding = "utf-8"
    errors = "replace"
    line_buffering = True
    write_through = True

    def __init__(self, output: Output, descriptor: int) -> None:
        self._output = output
        self.buffer = BinaryStream(output, descriptor)
        self.name = "<stdout>" if descriptor == 1 else "<stderr>"
        self.mode = "w"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        text = str.__str__(text)  # a subclass could return another length
        self._output.add(text)
        return len(text)

    def fileno(self) -> int:
        return self.buffer.fileno()

    def reconfigure(self, **options: object) -> None:
        """Accept the options of a file's stream, which change nothing here."""

    def close(self) -> None:
        """Stay open: the next cell prints, too."""
