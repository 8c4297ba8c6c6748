"""Paths of the files in a workspace. A path has one form: a text either is that form, or it is refused.

A path is also refused if it becomes a forbidden one by percent-decoding or compatibility normalisation (NFKC,
https://www.unicode.org/reports/tr15/), because a program that reads the tree may apply both.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import Final, NewType

from spass.core.errors import InvalidPath

_MIB: Final = 1024 * 1024

MAX_FILES: Final = 5000
MAX_TOTAL_BYTES: Final = 100 * _MIB
"""Bytes of all files together."""
MAX_FILE_BYTES: Final = 4 * _MIB
MAX_BODY_BYTES: Final = 4 * _MIB
"""Bytes of one request's body: a file or an archive."""


WorkspacePath = NewType("WorkspacePath", str)

MAX_PATH_BYTES: Final = 512
"""Bytes of UTF-8."""
MAX_SEGMENTS: Final = 32

_PLAIN: Final = re.compile(r"(?:(?!\.)[A-Za-z0-9._+=@#()\[\]-]*[A-Za-z0-9_-]/)*(?!\.)[A-Za-z0-9._+=@#()\[\]-]*[A-Za-z0-9_-]")
"""Most paths. Only their length and the number of their segments need a check."""
_FORBIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_INVISIBLE_LETTERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")  # they have no width, but are not in Cf
_GIT: Final = re.compile(r"(?:\.git|git~1)[. ]*(?::.*)?")  # what Windows takes for .git (CVE-2014-9390)
_DRIVE: Final = re.compile("[A-Za-z]:")
_ESCAPES: Final = re.compile("(?:%[0-9A-Fa-f]{2})+")
_WIDE_ESCAPE: Final = re.compile("%u([0-9A-Fa-f]{4})")  # of old Microsoft servers
_OVERLONG: Final = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]|\xf0[\x80-\x8f][\x80-\xbf]{2}"
    rb"|\xf8[\x80-\x87][\x80-\xbf]{3}|\xfc[\x80-\x83][\x80-\xbf]{4}"
)
_SHOWN_CHARACTERS: Final = 120


def parse_path(text: str, param: str = "path") -> WorkspacePath:
    """Return ``text`` as the path of a file. Raise InvalidPath if it is not the one form of a path. ``param`` names the field
    that is wrong."""
    problem = _find_problem(text)
    if problem is None:
        return WorkspacePath(text)
    raise InvalidPath(f"The path {show(text)} is not valid: {problem}", param=param)


def parse_folder(text: str, param: str = "path") -> str:
    """Return ``text`` as the path of a folder, without a slash at its end. "" is the root."""
    if text in (".", "./", "/"):
        raise InvalidPath(
            f'The path {show(text)} is not valid: for the root of the workspace, leave it out or send "".', param=param
        )
    return parse_path(text.removesuffix("/"), param) if text else ""


def check_together(paths: Iterable[str], param: str = "path") -> None:
    """Check that the files ``paths`` can be in one tree.

    Raises:
        InvalidPath: one of them is there twice, two differ only in case, or one is the folder of another.
    """
    files: dict[str, str] = {}
    for path in paths:
        key = _fold(path)
        if key in files:
            raise InvalidPath(_explain_clash(path, files[key]), param=param)
        files[key] = path
    folders: dict[str, str] = {}
    for key, path in files.items():
        end = key.rfind("/")
        while end >= 0 and key[:end] not in folders:
            folders[key[:end]] = path
            end = key.rfind("/", 0, end)
    if clash := min(files.keys() & folders.keys(), default=None):
        raise InvalidPath(
            f"{show(files[clash])} cannot be a file, because it is the folder of {show(folders[clash])}. Rename one of them.",
            param=param,
        )


def show(path: str) -> str:
    """Return ``path`` in quotation marks for a message: with escapes if it is not printable or not NFC, and cut if it is long."""
    text = path[:_SHOWN_CHARACTERS]
    is_plain = unicodedata.normalize("NFC", text) == text and _INVISIBLE_LETTERS.isdisjoint(text)
    return (repr(text) if is_plain else ascii(text)) + ("…" if len(path) > _SHOWN_CHARACTERS else "")


def has_invisible(text: str) -> bool:
    """Return whether ``text`` holds a control or format character, half of a surrogate pair, or a letter without width."""
    return not _INVISIBLE_LETTERS.isdisjoint(text) or any(
        map(_FORBIDDEN_CATEGORIES.__contains__, map(unicodedata.category, text))
    )


def _fold(path: str) -> str:
    """Return the form in which file systems that ignore case compare paths."""
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())


def _explain_clash(path: str, other: str) -> str:
    if path == other:
        return f"The path {show(path)} is there twice. Send each file once."
    return f"The paths {show(other)} and {show(path)} differ only in case. Rename one of them."


def _find_problem(text: str) -> str | None:
    """Return what is wrong with ``text`` as a path, and what to write instead."""
    if len(text) > MAX_PATH_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        return f"it has more than {MAX_PATH_BYTES} bytes of UTF-8. Use shorter names."
    if text.count("/") >= MAX_SEGMENTS:
        return f"it has more than {MAX_SEGMENTS} segments. Use fewer folders."
    if _PLAIN.fullmatch(text):
        return None
    if problem := _find_problem_as_read(text):
        return problem
    if unicodedata.normalize("NFC", text) != text:
        return f"it is not in Unicode's form NFC. Write {show(unicodedata.normalize('NFC', text))}."
    decoded = _decode(text)
    if decoded != text and (problem := _find_problem_as_read(decoded)):
        return f"another program may read it as {show(decoded)}, and {problem}"
    return None


def _find_problem_as_read(text: str) -> str | None:
    """Return what is wrong with ``text`` as it is: its characters and its segments."""
    if not text:
        return 'it is empty. Name a file, such as "src/main.py".'
    if has_invisible(text):
        return "it holds a control, format or invisible character. Leave that character out."
    if "\\" in text:
        return 'it holds a backslash. Separate folders by "/".'
    if text.startswith("/"):
        return 'it begins with "/". Paths are relative to the root of the workspace, such as "src/main.py".'
    if _DRIVE.match(text):
        return "it begins with a drive letter. Paths are relative to the root of the workspace."
    for segment in text.split("/"):
        if problem := _find_problem_of_segment(segment):
            return problem
    return None


def _find_problem_of_segment(segment: str) -> str | None:
    if not segment:
        return 'a segment is empty. Write one "/" between two names and none at the end.'
    if segment in (".", ".."):
        return f'the segment "{segment}" is not allowed. Write the path from the root of the workspace.'
    if _GIT.fullmatch(segment.casefold()):
        return 'the name ".git", in any form, is not allowed. Use another name, or leave it out.'
    if segment != segment.strip():
        return "a segment begins or ends with a blank. Leave the blank out."
    if segment.endswith("."):
        return "a segment ends with a dot. Leave the dot out."
    return None


def _decode(text: str) -> str:
    """Return ``text`` with percent-escapes decoded and in NFKC, both until nothing changes. Every decoding shortens the text."""
    while True:
        decoded = _ESCAPES.sub(_decode_escapes, _WIDE_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text))
        decoded = unicodedata.normalize("NFKC", decoded)
        if decoded == text:
            return text
        text = decoded


def _decode_escapes(found: re.Match[str]) -> str:
    """Decode UTF-8, also the overlong forms of a character, which old decoders accept."""
    escaped = bytes.fromhex(found[0].replace("%", ""))
    return _OVERLONG.sub(_decode_overlong, escaped).decode("utf-8", "replace")


def _decode_overlong(found: re.Match[bytes]) -> bytes:
    first, *others = found[0]
    code = first & 0x1F if len(others) == 1 else 0
    for byte in others:
        code = code << 6 | byte & 0x3F
    return chr(code).encode("utf-8", "replace") if code < sys.maxunicode else b"?"
