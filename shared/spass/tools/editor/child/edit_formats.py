"""Read a model's answer strictly. Where an answer is unclear, Aider guesses; a wrong guess changes lines that must not change.

Each function raises ``ValueError`` with a message for the model, which Aider sends to it, up to three times.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

# As in aider.coders.editblock_coder, which strips lines before it looks for these.
_HEAD: Final = re.compile(r"<{5,9} SEARCH>?\s*")
_DIVIDER: Final = re.compile(r"={5,9}\s*")
_END: Final = re.compile(r">{5,9} REPLACE\s*")


class _Part(Enum):
    OUTSIDE = auto()
    SEARCH = auto()
    REPLACE = auto()


def check_blocks(answer: str) -> None:
    """Check that each SEARCH/REPLACE block has its three marks in order. Raise ValueError if a block is not complete, or a line
    in it looks like one of the marks. Aider would end the block there."""
    part = _Part.OUTSIDE
    for line in answer.split("\n"):
        text = line.strip()
        if _HEAD.fullmatch(text):
            expected, following = _Part.OUTSIDE, _Part.SEARCH
        elif _END.fullmatch(text):
            expected, following = _Part.REPLACE, _Part.OUTSIDE
        elif _DIVIDER.fullmatch(text) and part is not _Part.OUTSIDE:
            expected, following = _Part.SEARCH, _Part.REPLACE
        else:
            continue
        if part is not expected:
            raise ValueError(
                f"The line `{text}` is not where a SEARCH/REPLACE block may have it. Each block is `<<<<<<< SEARCH`, lines of "
                "the file, `=======`, new lines, `>>>>>>> REPLACE`. Its other lines must not look like these marks."
            )
        part = following
    if part is not _Part.OUTSIDE:
        raise ValueError("The last SEARCH/REPLACE block has no `>>>>>>> REPLACE`. Send all blocks again, complete.")


@dataclass(slots=True)
class _Listing:
    """A fenced part of an answer. ``is_bare``: the fence that opens it has no language after it."""

    name: str
    is_bare: bool
    lines: list[str] = field(default_factory=list)


class FenceInListing(ValueError):
    """A file listing contains the fence that should end it."""


def read_listings(
    answer: str, fence: tuple[str, str], find_name: Callable[[str], str | None]
) -> list[tuple[str, str, list[str]]]:
    """Return the file listings of an answer as Aider represents them: path, source of the name, lines with their ends.

    A listing is the name of a file on a line, the opening fence, all lines of the file, the closing fence. ``find_name`` returns
    the path of a file that may be edited, or None. Other fenced parts with a language, such as examples, are ignored.

    Raises:
        FenceInListing: where a listing ends is unclear.
        ValueError: a listing is not complete, or none is of a file that may be edited.
    """
    edits: dict[str, list[str]] = {}
    ignored: list[str] = []
    before = ""
    listing: _Listing | None = None
    for line in answer.splitlines(keepends=True):
        if listing is None:
            if line.startswith(fence[0]):
                listing = _Listing(_clean_name(before), not line.removeprefix(fence[0]).strip())
        elif not line.startswith(fence[1]):
            listing.lines.append(line)
        else:
            path = find_name(listing.name) if listing.name else None
            if line.removeprefix(fence[1]).strip() or (edits and path is None and listing.is_bare):
                raise FenceInListing(_explain(listing.name, fence))
            if path is None:
                ignored.append(listing.name)
            else:
                edits.setdefault(path, listing.lines)
            listing = None
        before = line
    if listing is not None:
        raise ValueError(f"The last file listing does not end with {fence[1]}. Send every listing again, complete.")
    if ignored and not edits:
        raise ValueError(_explain(ignored[0], fence))
    if not edits and fence[0] != "```" and "\n```" in f"\n{answer}":
        raise ValueError(f"Send every file listing between {fence[0]} and {fence[1]}, not between ```.")
    return [(path, "block", lines) for path, lines in edits.items()]


def _explain(name: str, fence: tuple[str, str]) -> str:
    return (
        f"`{name[:200]}`, the line before {fence[0]}, is not the name of a file that you may edit, or a file listing contains a "
        f"line that begins with {fence[1]}, which ends the listing. Send every file listing again, as the instructions say."
    )


def _clean_name(line: str) -> str:
    """Return the file name in the line before a listing, without the marks that models add to it."""
    return line.strip().strip("*").rstrip(":").strip("`").lstrip("#").strip()
