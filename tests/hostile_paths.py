"""Paths that every route and every tool must refuse with ``invalid_path``, and unusual paths that are valid."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

_TARGETS: Final = ("etc/passwd", "x", "src/main.py")
_BIDIRECTIONAL: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_ZERO_WIDTH: Final = "\u00ad\u034f\u115f\u1160\u180e\u200b\u200c\u200d\u2060\u2061\u2064\u3164\ufeff\uffa0\U000e0041"
_BLANKS: Final = " \u00a0\u2002\u2003\u2009\u202f\u205f\u3000"
_DOTS: Final = (
    *("%2e%2e", "%2E%2E", ".%2e", "%2e.", "%252e%252e", "%25252e%25252e", "%u002e%u002e", "%c0%ae%c0%ae", "%C0%AE."),
    *(
        "%e0%80%ae%e0%80%ae",
        "%f0%80%80%ae%f0%80%80%ae",
        "%f8%80%80%80%ae.",
        "%fc%80%80%80%80%ae.",
        "．．",
        "．.",
        ".．",
        "‥",
        "﹒﹒",
        "․․",
    ),
    *("%ef%bc%8e%ef%bc%8e", "％2e％2e", "%e2%80%a5", "．%2e", "%25%32%65%25%32%65"),
)
"""The segment ``..`` in other encodings."""
_SLASHES: Final = ("%2f", "%2F", "%252f", "%5c", "%c0%af", "%u002f", "%u005c", "／", "%ef%bc%8f", "＼", "﹨")
_GIT: Final = (
    *(
        ".git",
        ".GIT",
        ".Git",
        ".gIt",
        ".giT",
        ".GiT",
        ".git::$INDEX_ALLOCATION",
        ".git :x",
        "git~1",
        "GIT~1",
        "git%7E1",
        "ｇit~1",
        "%2egit",
        "%2EGIT",
        ".%67it",
        ".g%69t",
        ".gi%54",
        "%252egit",
        "．git",
        "．ＧＩＴ",
    ),
    *(".ｇit", ".ℊit", ".gⁱt", ".Ⓖⓘⓣ", "․git", "%e2%80%a4git", "．%67it"),
)


def _absolute() -> Iterator[str]:
    yield from ("/", "//", "///", "/.", "/..", "//server/share", "/~", "/proc/self/environ", "/dev/null", "/tmp/x")
    yield from (f"/{target}" for target in _TARGETS)
    yield from (f"{slash}{target}" for slash in _SLASHES for target in _TARGETS)
    yield from ("file:///etc/passwd", "http://host/x", "s3://bucket/key", "~//x")


def _traversal() -> Iterator[str]:
    yield from (
        ".",
        "..",
        "./",
        "../",
        "a/.",
        "a/..",
        "./a",
        "a/./b",
        "a/../b",
        "../../../../x",
        "a/b/../../../x",
        "..//..",
        "...",
        "....",
        "a/...",
    )
    for dots in ("..", *_DOTS):
        yield from (f"{dots}/{target}" for target in _TARGETS)
        yield from (f"src/{dots}/{dots}/x", f"src/{dots}", dots if dots != ".." else "../..")
        yield from (f"{dots}{slash}x" for slash in _SLASHES)


def _empty_segments() -> Iterator[str]:
    yield from ("", "a//b", "a/", "a//", "src/main.py/", "a///b", "a%2f/b", "a/%2fb", "a／／b", "a%2f%2fb", "a%2f", "a／")


def _control() -> Iterator[str]:
    for code in (*range(0x20), *range(0x7F, 0xA0)):
        yield f"a{chr(code)}b"
    yield from (
        "\0",
        "main.py\0.txt",
        "main.py%00.txt",
        "a%0ab",
        "a%0d%0ab",
        "a%7f",
        "%1b[31m",
        "a\r\nb",
        "\ud800",
        "a/\udfff",
        "\u2028",
        "a\u2029b",
    )


def _windows() -> Iterator[str]:
    for drive in "CcDZ":
        yield from (f"{drive}:", f"{drive}:/x", f"{drive}:x", f"{drive}:\\x", f"{drive}%3a/x", f"{drive}：/x")
    yield from (
        "\\",
        "a\\b",
        "\\\\server\\share",
        "..\\..\\x",
        "a\\",
        "\\a",
        "\\\\?\\C:\\x",
        "a/b\\c",
        "a%5cb",
        "a%255cb",
        "a＼b",
    )


def _git() -> Iterator[str]:
    for name in _GIT:
        yield from (name, f"{name}/config", f"src/{name}/hooks/pre-commit", f"src/{name}")


def _unicode() -> Iterator[str]:
    yield from (
        "e\u0301.md",
        "a/u\u0308.md",
        "\u212b.txt",
        "\u1100\u1161",
        "\u2126",
        "o\u0302\u0301",
        "\u0958",
        "\ufb1d.md",
        "\u0344",
    )
    for character in _BIDIRECTIONAL + _ZERO_WIDTH:
        yield from (f"a{character}b", f"{character}.git", f"src/x{character}")


def _blanks_and_dots() -> Iterator[str]:
    for blank in _BLANKS:
        yield from (f"{blank}a", f"a{blank}", f"a/{blank}/b", f"a{blank}/b", f"a/{blank}b")
    yield from ("a.", "a./b", "a/b.", "main.py.", "a..", "a. ", ".git.", ".git ", "a%2e", "a．", "a%20", "%20a", "a/b%2e/c", "a…")


def _too_long() -> Iterator[str]:
    yield from ("x" * 513, "é" * 257, "a/" * 255 + "abc", "x" * 100_000, "日" * 171)
    yield from ("/".join("a" * 33), "a/" * 32 + "b", "a/" * 200 + "b")


HOSTILE: Final[Mapping[str, Sequence[str]]] = {
    "absolute": [*_absolute()],
    "traversal": [*_traversal()],
    "empty segments": [*_empty_segments()],
    "control characters": [*_control()],
    "windows": [*_windows()],
    "git": [*_git()],
    "unicode": [*_unicode()],
    "blanks and dots": [*_blanks_and_dots()],
    "too long": [*_too_long()],
}
"""Hostile paths by kind."""

HOSTILE_PATHS: Final[Sequence[str]] = [*dict.fromkeys(path for paths in HOSTILE.values() for path in paths)]
"""All of them, each once. Some hold half of a surrogate pair, which no URL and no JSON text can carry: see ``SENDABLE``."""


def _is_sendable(path: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in path)


SENDABLE: Final[Sequence[str]] = [path for path in HOSTILE_PATHS if _is_sendable(path)]
"""The hostile paths that a URL or a JSON text can carry."""

QUERIES: Final[Sequence[str]] = [f"path={quote(path, safe='')}" for path in SENDABLE if len(path) < 2000]
"""Query strings with a hostile path."""

CLASHES: Final[Sequence[tuple[str, str]]] = (
    ("README.md", "readme.md"),
    ("src/A.py", "src/a.py"),
    ("Src/a.py", "src/A.py"),
    ("straße", "STRASSE"),
    ("É.md", "é.md"),
    ("src", "src/main.py"),
    ("src/main.py", "src"),
    ("a/b", "a/b/c/d/e"),
    ("Src", "src/main.py"),
    ("same.md", "same.md"),
)
"""Pairs of paths that one tree cannot have."""

UNUSUAL: Final[Sequence[str]] = (
    *(
        "a",
        "README.md",
        "src/main.py",
        ".gitignore",
        ".github/workflows/ci.yml",
        ".env",
        "a/.gitkeep",
        ".gitmodules",
        "git",
        "a/b.git",
        "git~10",
        "agit~1",
        ".gitx:y",
    ),
    *(
        "a b.txt",
        "é.md",
        "日本語/ファイル.txt",
        "Größe.md",
        "Привет.md",
        "عربي.md",
        "a..b",
        "...a",
        "a/..b",
        "-x",
        "--help",
        "~",
        "~root",
        "$HOME",
    ),
    *(
        "100%.txt",
        "100%face.txt",
        "a%20b.txt",
        "a%2fb",
        "%41",
        "[id].tsx",
        "(group)/page.tsx",
        "@scope/pkg",
        "a+b=c",
        "#1",
        "a&b",
        "a;b",
        "a|b",
    ),
    *(
        "'",
        '"',
        "`id`",
        "$(id)",
        "<s>",
        "a/b:c",
        "src/C:",
        "ab:c",
        "aux",
        "CON",
        "NUL.txt",
        "*",
        "**",
        "!a",
        "?",
        "{a,b}",
        "😀.md",
        "❤️.md",
    ),
    *(
        "x" * 512,
        "é" * 256,
        "/".join("a" * 32),
        "Dockerfile",
        "__init__.py",
        "a" * 300 + "/" + "b" * 211,
        "½.txt",
        "ﬁle.txt",
        "１.txt",
    ),
)
"""Valid paths."""
