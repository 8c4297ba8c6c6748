"""The view of a file that an editor's child process receives, and the way back from an edited view to the file.

A prompt and an answer pass the input defence and the redaction, which rewrite some characters. If a model repeated such a line of
a file, the repetition would change the file. So the editor works on a view that nothing on the way changes: each line as a model
sees it and as its repetition arrives. Afterwards the edited view is aligned with the view, and each line that was kept becomes
the line of the file, byte for byte. So do lines that moved, and the rewritten parts of lines that changed.

Each line end that Unicode knows is a line feed in a view: the defence makes line breaks of form feeds, and editors split texts in
different ways. A view has no byte order mark, and its last line has an end.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spass.core.json import encode_utf8
from spass.redaction.text import REDACTED
from spass.tools.editor.alignment import Gap, align, gaps

ModelRoundTrip = Callable[[str], str]
"""Return a text as a model sees it and as its repetition arrives, with the same number of lines."""

_BOM: Final = "\ufeff"
_NEWLINES: Final = ("\n", "\r\n", "\r")
_DELIMITERS: Final = re.compile(r"^([^\S\n]*)(<{5,9} SEARCH>?|={5,9}|>{5,9} REPLACE)(?=[^\S\n]*$)", re.MULTILINE)
"""Lines that end a part of an edit in Aider's format of blocks."""
_MAX_PARTNERS: Final = 50
"""Pairs of lines of one edit whose rewritten parts are compared."""


class Line(NamedTuple):
    """A line of a file: its ``text``, its ``end`` (empty for a last line without a newline), and the line that the view shows."""

    text: str
    end: str
    seen: str

    @property
    def is_rewritten(self) -> bool:
        return self.text != self.seen

    @property
    def is_redacted(self) -> bool:
        return self.seen.count(REDACTED) > self.text.count(REDACTED)


@dataclass(frozen=True, slots=True)
class FileView:
    """The view of one file. ``text`` is what the editor receives."""

    body: bytes
    lines: Sequence[Line]
    bom: str = ""
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", "".join(f"{line.seen}\n" for line in self.lines))

    @classmethod
    def of(cls, body: bytes, model_round_trip: ModelRoundTrip) -> "FileView":
        """Return the view of a file; ``b""`` for one that does not exist yet. Raise UnicodeDecodeError if the file is not
        UTF-8."""
        text = body.decode()
        bom = _BOM if text.startswith(_BOM) else ""
        lines = text[len(bom) :].splitlines(keepends=True)
        texts = [line.splitlines()[0] for line in lines]
        seen = _DELIMITERS.sub(r"\1‹\2›", model_round_trip("\n".join(texts))).split("\n") if lines else []
        parts = zip(lines, texts, seen, strict=True)
        return cls(body, [Line(text, line[len(text) :], shown) for line, text, shown in parts], bom)

    def restore(self, result: str, movable_lines: Mapping[str, str]) -> bytes:
        """Return the file after an edit that made ``result`` of the view. ``movable_lines`` come from all views of the edit:
        lines may have moved here from another file."""
        if result == self.text:
            return self.body
        return encode_utf8(self.bom + "".join(_Restoration(self, result, movable_lines).pieces()))

    def movable_lines(self) -> dict[str, str]:
        """Return the rewritten lines by what is seen of them, if that is not blank. A redacted line does not move to another
        file: a model must not copy a credential that it was not shown."""
        lines = [line for line in reversed(self.lines) if line.is_rewritten and not line.is_redacted]
        return {line.seen: line.text for line in lines if line.seen.strip()}


class _Restoration:
    """One edited view on its way back to the file."""

    def __init__(self, view: FileView, result: str, movable_lines: Mapping[str, str]) -> None:
        self._old = view.lines
        self._new = [line.removesuffix("\r") for line in result.split("\n")]
        self._has_last_end = self._new[-1] == ""
        if self._has_last_end:
            self._new.pop()
        if self._old:
            self._has_last_end = self._old[-1].end != ""
        known = {line.seen for line in self._old}
        self._elsewhere = {seen: text for seen, text in movable_lines.items() if seen not in known}
        self._kept = align([line.seen for line in self._old], self._new)
        self._newline = next((line.end for line in self._old if line.end in _NEWLINES), "\n")
        self._partners_left = _MAX_PARTNERS

    def pieces(self) -> Iterator[str]:
        """Yield the texts and ends of the lines of the file."""
        end = self._newline
        last = len(self._new) - 1
        for at, (text, own_end) in enumerate(self._restored_lines()):
            if at == last and not self._has_last_end:
                yield text
                return
            end = own_end or (end if end in _NEWLINES else self._newline)
            yield text
            yield end

    def _restored_lines(self) -> Iterator[tuple[str, str]]:
        """Yield the text and the end of each line. An empty end means the end of the line before."""
        moved = self._moved_lines()
        changed: dict[int, tuple[str, str]] = {}
        for gap in gaps(self._kept, len(self._old)):
            partners = [at for at in range(gap.start, gap.end) if self._old[at].is_rewritten]
            for new in range(gap.new_start, gap.new_end):
                line, end = self._new[new], self._end_in(gap, new)
                if original := moved.get(line):
                    old = self._old[original.popleft() if len(original) > 1 else original[0]]
                    changed[new] = old.text, end or old.end
                else:
                    changed[new] = self._elsewhere.get(line) or self._with_parts(line, partners), end
        for new, old_at in enumerate(self._kept):
            yield changed[new] if old_at is None else self._old[old_at][:2]

    def _moved_lines(self) -> dict[str, deque[int]]:
        """Return, for each line of the view of which a line was rewritten, the lines of the file that it may be: those that were
        not kept, and then one that was, preferably one that was not rewritten."""
        rewritten = {line.seen for line in self._old if line.is_rewritten}
        kept = {at for at in self._kept if at is not None}
        places: dict[str, deque[int]] = defaultdict(deque)
        copied: dict[str, int] = {}
        for at, line in enumerate(self._old):
            if line.seen not in rewritten:
                continue
            if at not in kept:
                places[line.seen].append(at)
            elif line.seen.strip() and (line.seen not in copied or not line.is_rewritten):
                copied[line.seen] = at
        for seen, at in copied.items():
            places[seen].append(at)
        return places

    def _end_in(self, gap: Gap, new: int) -> str:
        """Return the end of the line that ``new`` replaces, or an empty text if it is an additional line."""
        at = new - gap.new_start
        if new == gap.new_end - 1 and gap.size:
            return self._old[gap.end - 1].end
        return self._old[gap.start + at].end if at < gap.size - 1 else ""

    def _with_parts(self, line: str, partners: list[int]) -> str:
        """Return a changed ``line`` with the original of each rewritten part that it kept. It may replace one of the rewritten
        lines at ``partners``; each of them is used once."""
        for at in partners:
            if self._partners_left <= 0:
                break
            self._partners_left -= 1
            restored = _restore_parts(self._old[at], line)
            if restored is not None:
                partners.remove(at)
                return restored
        return line


_MAX_CHARACTERS: Final = 300
"""Characters of a line that is compared: the time may grow with the square of the length."""


def _restore_parts(original: Line, changed: str) -> str | None:
    """Return ``changed``, a changed form of ``original.seen``, with the rewritten parts that it kept as they are in
    ``original.text``. Return None if less than half of it was kept, or if a line is too long."""
    if max(map(len, (original.text, original.seen, changed))) > _MAX_CHARACTERS:
        return None
    kept = align(original.seen, changed)
    places = {old: new for new, old in enumerate(kept) if old is not None}
    if 2 * len(places) < max(len(original.seen), len(changed)):
        return None
    restored, at = "", 0
    for part in gaps(align(original.text, original.seen), len(original.text)):
        place = _place_of(part, places, len(original.seen), len(changed))
        if place is not None:
            restored += changed[at:place] + original.text[part.start : part.end]
            at = place + part.new_size
    return restored + changed[at:]


def _place_of(part: Gap, places: dict[int, int], seen_length: int, changed_length: int) -> int | None:
    """Return where a rewritten part begins in the changed line, or None if the line did not keep it. A part of which nothing is
    seen was kept if both characters beside it were."""
    known = {-1: -1, seen_length: changed_length} | places
    first, last = (part.new_start, part.new_end - 1) if part.new_size else (part.new_start - 1, part.new_start)
    start = known.get(first)
    if start is None or any(known.get(first + offset) != start + offset for offset in range(1, last - first + 1)):
        return None
    return start if part.new_size else start + 1
