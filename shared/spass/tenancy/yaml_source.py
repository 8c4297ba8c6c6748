"""Read the operator's YAML files strictly, with the line of every value for error messages.

The reader accepts only values that JSON has. Scalars follow the core schema of YAML 1.2
(https://yaml.org/spec/1.2.2/#103-core-schema), so ``no`` is a word and ``010`` is ten. The reader refuses anchors and aliases (a
small file could grow without bound), tags, keys that are not text or occur twice, and several documents.

The reader uses libyaml's events and not ``yaml.compose``: nodes do not show anchors and tags, and the composer recurses in C
before a limit of depth applies (100,000 brackets end the process).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from spass.core.messages import Json
from spass.core.text_checks import did_you_mean, suggest_name
from spass.tenancy.config_problem import ConfigProblem, display_path
from spass.tenancy.validation_messages import explain_error

Loc: TypeAlias = tuple[str | int, ...]
"""The path to a value: keys and list positions from the root."""

M = TypeVar("M", bound=BaseModel)

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH: Final = 32
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]{1,30}\Z")
_FLOAT: Final = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?\Z|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"
)


class ConfigError(Exception):
    """Raised when a file of the operator cannot be used. It has all problems, by file and line."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line or 0)))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A file's data, and the line of each value."""

    file: str
    data: Json
    lines: Mapping[Loc, int]

    def line_of(self, loc: Loc) -> int | None:
        """Return the line of the value at ``loc``, or of the innermost value around it that exists."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc)

    def problem(self, loc: Loc, message: str) -> ConfigProblem:
        where = format_loc(loc)
        return ConfigProblem(self.file, self.line_of(loc), f"{where}: {message}" if where else message)


def load_yaml(path: Path) -> YamlSource:
    """Return the document in the file at ``path``, or raise ``ConfigError`` if it is not the YAML described above."""
    file = display_path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError([ConfigProblem(file, None, f"cannot read the file: {reason}")]) from None
    return parse_yaml(text, file)


def parse_yaml(text: str, file: str, *, loader: type = _LOADER) -> YamlSource:
    """Return the document in ``text``, which messages call ``file``, or raise ``ConfigError``."""
    reader = _Reader(file)
    try:
        return YamlSource(file, reader.read_document(yaml.parse(text, Loader=loader)), reader.lines)
    except yaml.MarkedYAMLError as error:
        line = min(error.problem_mark.line + 1, len(text.splitlines()) or 1) if error.problem_mark else None
        raise ConfigError(
            [ConfigProblem(file, line, f"not valid YAML: {_suggest_check(error, line)} ({error.problem})")]
        ) from None
    except yaml.YAMLError:
        raise ConfigError([ConfigProblem(file, None, "not valid YAML: it has a character that YAML does not allow")]) from None


def _suggest_check(error: yaml.MarkedYAMLError, line: int | None) -> str:
    # The parser reports the place where parsing fails, which may be lines after the mistake.
    if error.context_mark and re.search("quoted scalar|flow", error.context or ""):
        opened = error.context_mark.line + 1
        return f"check the quote or bracket that opens in line {min(opened, line or opened)}"
    return "check indentation, colons and tabs" + (f" around line {line}" if line else "")


class _Reader:
    """Build the data and the table of lines from libyaml's events."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Loc, int] = {}

    def read_document(self, events: Iterator[yaml.Event]) -> Json:
        self._events = events
        data: Json = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refuse(event, "a second document begins here; a file has one document")
            elif not isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                data = self._read_value(event, ())
        return data

    def _read_value(self, event: yaml.Event, loc: Loc) -> Json:
        if isinstance(event, yaml.AliasEvent):
            raise self._refuse(event, f"the alias *{event.anchor} is not allowed; write the value out here")
        if not isinstance(event, (yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            raise self._refuse(event, "a value is missing here")
        if event.anchor is not None:
            raise self._refuse(event, f"the anchor &{event.anchor} is not allowed; remove it")
        if event.tag is not None:
            raise self._refuse(event, f"the tag {event.tag} is not allowed; write a plain value")
        if len(loc) > _MAX_DEPTH:
            raise self._refuse(event, f"nested deeper than {_MAX_DEPTH} levels")
        self.lines.setdefault(loc, _line_number(event))
        if isinstance(event, yaml.ScalarEvent):
            return _parse_scalar(event.value) if event.implicit[0] else event.value
        return self._read_mapping(loc) if isinstance(event, yaml.MappingStartEvent) else self._read_sequence(loc)

    def _read_mapping(self, loc: Loc) -> Json:
        mapping: dict[str, Json] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._read_value(event, (*loc, f"\0key{len(mapping)}"))
            if not isinstance(key, str):
                raise self._refuse(event, "a key must be text; put it in quotes")
            if key in mapping:
                raise self._refuse(event, f"the key '{key}' occurs a second time here; keep one")
            self.lines[(*loc, key)] = _line_number(event)
            mapping[key] = self._read_value(next(self._events), (*loc, key))
        return mapping

    def _read_sequence(self, loc: Loc) -> Json:
        items: list[Json] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._read_value(event, (*loc, len(items))))
        return items

    def _refuse(self, event: yaml.Event, message: str) -> ConfigError:
        return ConfigError([ConfigProblem(self.file, _line_number(event), message)])


def _line_number(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _parse_scalar(text: str) -> Json:
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INT.match(text):
        return int(text)
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.match(text) else text


def validate(source: YamlSource, model: type[M], advise: Callable[[str], str | None] | None = None) -> M:
    """Return the file as a ``model``, or raise ``ConfigError``. A class variable ``hints`` of a model maps a wrong key to the
    advice for it. ``advise`` returns the advice for a wrong key of the whole file, or None. Without advice, the message
    suggests the most similar known key."""
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise ConfigError([_translate(source, model, detail, advise) for detail in error.errors(include_url=False)]) from None


def format_loc(loc: Loc) -> str:
    """Return ``loc`` as ``llm.backends[0]``, with an empty name as ``""``."""
    text = ""
    for part in loc:
        name = part if part != "" else '""'
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def _translate(
    source: YamlSource, model: type[BaseModel], detail: ErrorDetails, advise: Callable[[str], str | None] | None
) -> ConfigProblem:
    loc: Loc = tuple(part for part in detail["loc"] if part != "[key]")
    match detail["type"]:
        case "extra_forbidden":
            key = str(loc[-1])
            owner = _find_model(model, loc[:-1])
            hints: Mapping[str, str] = getattr(owner, "hints", {})
            hint = hints.get(key) or (advise(key) if advise and len(loc) == 1 else None)
            advice = f"; {hint}" if hint else did_you_mean(key, list(owner.model_fields))
            return replace(source.problem(loc[:-1], f"unknown key '{key}'{advice}"), line=source.line_of(loc))
        case "missing":
            return source.problem(loc[:-1], f"the key '{loc[-1]}' is missing")
        case "literal_error":
            expected, value = str(detail.get("ctx", {}).get("expected", "")), detail["input"]
            known = re.findall(r"'([^']*)'", expected)
            advice = suggest_name(value, known) if isinstance(value, str) else ""
            return source.problem(loc, f"must be {'one of ' if len(known) > 1 else ''}{expected}{advice}")
        case "string_type":
            return source.problem(loc, "must be text; put it in quotes")
        case "dict_type" | "model_type" | "model_attributes_type":
            return source.problem(loc, "must be a mapping of keys to values")
        case kind:
            return source.problem(loc, explain_error(kind, detail["msg"]))


def _find_model(model: type[BaseModel], loc: Loc) -> type[BaseModel]:
    """Return the model of the mapping at ``loc`` in a file of ``model``."""
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _extract_model(model.model_fields[part].annotation) or model
    return model


def _extract_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for member in get_args(annotation) if (model := _extract_model(member))), None)
