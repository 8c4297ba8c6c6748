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
_SYMBOL: Final = re.compile(r"\b([A-Za-z_]\w*)\(\)")


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


def functions_in(text: str) -> list[str]:
    """Return the names of functions that ``text`` writes with parentheses, such as ``main()``, each once, in order."""
    return list(dict.fromkeys(_SYMBOL.findall(text)))
