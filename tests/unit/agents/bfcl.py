"""Calls of the Berkeley function-calling corpus (https://github.com/ShishirPatil/gorilla), with the tools that were offered.

The corpus has dots in the names of functions. Providers of models do not accept them, so they become underscores.
"""

import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spass.core.messages import Json, ToolSpec

FOLDER: Final = Path(sys.prefix) / "bfcl"
FILES: Final = ("simple_python", "multiple", "live_simple", "live_multiple")

_JSON_SCHEMA_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


@dataclass(frozen=True, slots=True)
class CorpusCall:
    """A call that answers a question of the corpus. ``specs`` describes the tools among which it chooses."""

    id: str
    name: str
    arguments: Mapping[str, Json]
    specs: tuple[ToolSpec, ...]


def corpus_calls(number: int) -> Sequence[CorpusCall]:
    """Return the first ``number`` calls: simple ones, ones with several tools, and ones that users of the live corpus sent."""
    wheels = [*FOLDER.glob("bfcl_eval-*.whl")]
    assert len(wheels) == 1, f"{FOLDER} does not have the corpus: run `make test`, which fetches it"
    calls: list[CorpusCall] = []
    with zipfile.ZipFile(wheels[0]) as wheel:
        for file in FILES:
            answers = {row["id"]: row["ground_truth"][0] for row in _rows(wheel, f"possible_answer/BFCL_v4_{file}.json")}
            calls += [_call(row, answers[row["id"]]) for row in _rows(wheel, f"BFCL_v4_{file}.json")]
    assert len(calls) >= number, f"the corpus has {len(calls)} calls"
    return calls[:number]


def _rows(wheel: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in wheel.read(f"bfcl_eval/data/{name}").decode().splitlines()]


def _call(row: Mapping[str, Any], answer: Mapping[str, Any]) -> CorpusCall:
    ((name, options),) = answer.items()
    specs = tuple(
        ToolSpec(_name(tool["name"]), tool["description"], _json_schema(tool["parameters"])) for tool in row["function"]
    )
    return CorpusCall(row["id"], _name(name), _chosen(options), specs)


def _name(text: str) -> str:
    return text.replace(".", "_")


def _chosen(options: Mapping[str, Sequence[Any]]) -> dict[str, Json]:
    """Return the first accepted value of each argument. No value, or an empty text, means that the argument is omitted."""
    return {name: _value(values[0]) for name, values in options.items() if values and values[0] != ""}


def _value(value: Any) -> Json:
    """Return an accepted value. The members of most nested objects are lists of accepted values too."""
    if isinstance(value, dict):
        has_options = all(isinstance(member, list) for member in value.values())
        return _chosen(value) if has_options else {name: _value(member) for name, member in value.items()}
    return [_value(item) for item in value] if isinstance(value, list) else value


def _json_schema(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _JSON_SCHEMA_TYPES.get(value, value) if key == "type" and isinstance(value, str) else _json_schema(value)
            for key, value in schema.items()
        }
    return [_json_schema(item) for item in schema] if isinstance(schema, list) else schema
