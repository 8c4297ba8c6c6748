"""The part of CloudWatch Logs Insights' language that the saved queries use: the fields that a query reads, the lines that it
selects.

(https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CWL_QuerySyntax.html)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_WORDS: Final = frozenset({"and", "or", "as", "by", "asc", "desc"})
_READING: Final = frozenset({"filter", "fields", "stats", "parse"})
_IDENTIFIER: Final = re.compile(r"(?<![\w.@\"])([A-Za-z_][\w.]*)(?!\w|\()")


def fields_read(lines: Iterable[str]) -> set[str]:
    """Return the fields of a log line that the commands read, without those that they make and Insights' own."""
    read: set[str] = set()
    made: set[str] = set()
    for line in lines:
        verb, _, rest = line.partition(" ")
        if verb not in _READING:
            assert verb in {"sort", "limit"}, line
            continue
        made |= set(re.findall(r"\(\?<(\w+)>", rest)) | set(re.findall(r" as (\w+)", rest))
        rest = re.sub(r'"[^"]*"|/.*/|bin\(\w+\)|@\w+| as \w+', " ", rest)
        read |= set(_IDENTIFIER.findall(rest)) - _WORDS
    return read - made


def selects(lines: Sequence[str], line: Mapping[str, Any]) -> bool:
    """Return True if the filters of the query select this line of the log."""
    return all(_holds(text.removeprefix("filter "), line) for text in lines if text.startswith("filter "))


def _holds(condition: str, line: Mapping[str, Any]) -> bool:
    """Evaluate a condition of equalities, ``ispresent``, ``and``, ``or`` and parentheses."""
    names: dict[str, Any] = {}

    def known(match: re.Match[str]) -> str:
        if match[1] in _WORDS:
            return match[0]
        names[key := match[1].replace(".", "__")] = line.get(match[1])
        return key

    pieces = re.split(r'("[^"]*")', condition)
    python = "".join(piece if piece.startswith('"') else _IDENTIFIER.sub(known, piece) for piece in pieces)
    python = re.sub(r"(?<![!=])=(?!=)", "==", re.sub(r"ispresent\((\w+)\)", r"(\1 is not None)", python))
    # An absent field is equal to nothing and unequal to nothing.
    python = re.sub(r"(\w+) != (\"[^\"]*\")", r"(\1 not in (None, \2))", python)
    return bool(eval(python, {"__builtins__": {}}, names))


def flattened(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a line as Insights names them: ``problems.0.problem``."""
    flat: dict[str, Any] = {}
    for name, value in line.items():
        inner: Mapping[str, Any] | None = None
        if isinstance(value, Mapping):
            inner = value
        elif isinstance(value, list):
            inner = {str(number): one for number, one in enumerate(value)}
        if inner is None:
            flat[name] = value
        else:
            flat |= {f"{name}.{key}": one for key, one in flattened(inner).items()}
    return {name: value for name, value in flat.items() if value is not None}
