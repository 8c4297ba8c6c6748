"""Find the files, folders and quoted texts that a message names."""

import re
from typing import Final

# A path with a slash, a name with an extension, or a name that is known without one. A URL and a decimal number are none.
_PATH: Final = re.compile(
    r"(?<![\w/.:@-])(\.?[\w@+-][\w@+.-]*/(?:[\w@+.-]+/)*[\w@+.-]*|\.?[\w@+-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,9}|"
    r"\.(?:env|gitignore|dockerignore)|Dockerfile|Makefile|LICENSE)(?![\w/])"
)
_NO_FILE: Final = re.compile(r"\.(com|org|net|io|de|eu)$|^(e\.g|i\.e|z\.b|d\.h|and/or|either/or|und/oder|ci/cd)$", re.IGNORECASE)
_NO_EXTENSION: Final = frozenset({"Dockerfile", "Makefile", "LICENSE", ".env", ".gitignore", ".dockerignore"})
_QUOTED: Final = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”|„([^“”\n]+)[“”]|»([^«\n]+)«|(?<![\w'])'([^'\n]+)'(?!\w)")
_NO_NAME: Final = (
    r"(?!(?:the|a|an|all|any|every|each|it|its|this|that|these|them|both|my|our|your|files?|module|class|functions?|methods?)\b)"
)
_SYMBOL: Final = re.compile(
    r"\b([A-Za-z_]\w*)\(\)|"
    rf"\bdocstrings? (?:to|for) (?:the )?(?:function |method )?`?{_NO_NAME}([A-Za-z_]\w*)`?(?=[.,!?]?(?:\s|$))"
)


def paths_in(text: str) -> list[str]:
    """Return the paths that ``text`` names, each once, in order. A folder may end with a slash."""
    found = (path.rstrip(".") for path in _PATH.findall(text))
    return [path for path in dict.fromkeys(found) if path and not _NO_FILE.search(path)]


def files_in(text: str) -> list[str]:
    return [path for path in paths_in(text) if is_file_name(path)]


def is_file_name(path: str) -> bool:
    """Return whether the last segment looks like a file: it has an extension or is a name known without one."""
    name = path.rpartition("/")[2]
    return name in _NO_EXTENSION or bool(re.search(r"[^.]\.\w+$", name))


def quotes_in(text: str) -> list[str]:
    """Return the texts between quotation marks or backticks, in order."""
    return ["".join(groups) for groups in _QUOTED.findall(text)]


def without_quotes(text: str) -> str:
    """Return ``text`` without the texts between quotation marks. A file may be in backticks."""
    return _QUOTED.sub(lambda quoted: quoted[0] if quoted[1] and files_in(quoted[1]) == [quoted[1]] else " ", text)


def functions_in(text: str) -> list[str]:
    """Return the functions that ``text`` names, each once, in order: ``main()``, or ``main`` to which a docstring is added."""
    return list(dict.fromkeys("".join(groups) for groups in _SYMBOL.findall(text)))
