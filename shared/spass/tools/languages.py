"""Name the language of a file by its name, for a viewer that colours it."""

from collections.abc import Mapping
from typing import Final

PLAIN_TEXT: Final = "text"

_BY_NAME: Final[Mapping[str, str]] = {
    "dockerfile": "dockerfile",
    "makefile": "makefile",
    "gemfile": "ruby",
    "jenkinsfile": "groovy",
}
_BY_ENDING: Final[Mapping[str, str]] = {
    **dict.fromkeys(("py", "pyi"), "python"),
    **dict.fromkeys(("js", "mjs", "cjs"), "javascript"),
    **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
    **dict.fromkeys(("md", "markdown"), "markdown"),
    **dict.fromkeys(("sh", "bash"), "bash"),
    **dict.fromkeys(("html", "htm"), "html"),
    **dict.fromkeys(("tf", "tfvars", "hcl"), "hcl"),
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cc", "cpp", "cxx", "hpp"), "cpp"),
    **dict.fromkeys(("kt", "kts"), "kotlin"),
    "jsx": "jsx",
    "tsx": "tsx",
    "json": "json",
    "jsonl": "json",
    "toml": "toml",
    "ini": "ini",
    "cfg": "ini",
    "css": "css",
    "scss": "scss",
    "sql": "sql",
    "go": "go",
    "rs": "rust",
    "java": "java",
    "rb": "ruby",
    "php": "php",
    "cs": "csharp",
    "swift": "swift",
    "scala": "scala",
    "r": "r",
    "lua": "lua",
    "pl": "perl",
    "xml": "xml",
    "svg": "xml",
    "csv": "csv",
    "rst": "rst",
    "proto": "protobuf",
    "graphql": "graphql",
    "ps1": "powershell",
    "diff": "diff",
    "patch": "diff",
}


def language_of(path: str) -> str:
    """Return the language of the file at ``path`` in lower case, or "text" if its name tells none."""
    name = path.rpartition("/")[2].lower()
    stem, dot, ending = name.rpartition(".")
    by_name = _BY_NAME.get(name) or _BY_NAME.get(name.partition(".")[0])
    return by_name or (_BY_ENDING.get(ending, PLAIN_TEXT) if dot and stem else PLAIN_TEXT)
