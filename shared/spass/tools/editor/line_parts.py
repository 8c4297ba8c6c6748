"""Find the rewritten parts of a line in a changed form of the line, and restore them."""

from typing import Final, NamedTuple

from spass.tools.editor.alignment import Gap, align, gaps

_MAX_CHARACTERS: Final = 300
"""Characters of a line that is compared: the time may grow with the square of the length."""


class RewrittenLine(NamedTuple):
    """A line of a file and how a model sees it."""

    text: str
    seen: str


def restore_parts(original: RewrittenLine, changed: str) -> str | None:
    """Return ``changed``, a changed form of ``original.seen``, with the rewritten parts that it kept as they are in
    ``original.text``. Return None if less than half of it was kept, or if a line is too long."""
    if max(map(len, (*original, changed))) > _MAX_CHARACTERS:
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
