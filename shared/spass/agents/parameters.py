"""The list of agent kinds, and their parameters as pydantic models and JSON Schema, from the fields of their dataclasses."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from spass.agents.kinds.base import BaseAgent
from spass.agents.kinds.registry import KINDS
from spass.core.messages import Json
from spass.tenancy.response_model import JsonObject, ResponseModel
from spass.tenancy.strict_body import StrictBody

SYSTEM_PROMPT: Final = "system_prompt"
"""The parameter that a request names beside ``params`` and not in it."""


def parameter_fields(kind: type[BaseAgent]) -> dict[str, tuple[Any, FieldInfo]]:
    """Return type and field of each parameter, as ``create_model`` takes them."""
    types = get_type_hints(kind, include_extras=True)
    return {field.name: (types[field.name], _field(field, types[field.name])) for field in dataclasses.fields(kind)}


def _field(field: "dataclasses.Field[Any]", annotation: object) -> FieldInfo:
    limits: dict[str, Any] = {
        name: field.metadata[name] for name in ("description", "ge", "le", "pattern") if name in field.metadata
    }
    if tuple in (get_origin(annotation), *map(get_origin, get_args(annotation))):
        limits["strict"] = False  # JSON and YAML have only lists
    if field.default_factory is not dataclasses.MISSING:
        limits["default_factory"] = field.default_factory
    elif field.default is not dataclasses.MISSING:
        limits["default"] = field.default
    info: FieldInfo = Field(**limits)
    return info


@cache
def params_model(kind: type[BaseAgent]) -> type[StrictBody]:
    """Return the model of ``params`` in a request: all parameters except the system prompt."""
    fields: dict[str, Any] = {name: field for name, field in parameter_fields(kind).items() if name != SYSTEM_PROMPT}
    return create_model("Params", __base__=StrictBody, **fields)


def params_schema(kind: type[BaseAgent]) -> Mapping[str, Json]:
    """Return the JSON Schema of ``params`` in a request, with defaults."""
    schema = params_model(kind).model_json_schema()
    for parameter in schema.get("properties", {}).values():
        parameter.pop("title", None)
    return {name: schema[name] for name in ("type", "properties", "required", "additionalProperties", "$defs") if name in schema}


def parameters_of(agent: BaseAgent) -> dict[str, Any]:
    """Return the value of each parameter."""
    return {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}


def describe(kind: type[BaseAgent]) -> str:
    """Return the first line of the docstring, or an empty text. ``dataclass`` gives a class without a docstring its signature."""
    text = (kind.__doc__ or "").strip()
    return "" if text.startswith(f"{kind.__name__}(") else text.partition("\n")[0].strip()


def owners(parameter: str) -> list[str]:
    """Return the keys of the kinds that have ``parameter``, without aliases."""
    kinds = [key for key in KINDS.keys() if KINDS.canonical(key) == key]  # noqa: SIM118 (KINDS is not a dict)
    return [key for key in kinds if parameter in {field.name for field in dataclasses.fields(KINDS.get(key))}]


class Kind(ResponseModel):
    """An agent kind. `params` is the JSON Schema of its parameters, with their defaults. If the kind is not `available`, `reason`
    says why. A kind that is not `multi_turn` calls the model only once."""

    key: str
    description: str
    accepts_tools: bool
    multi_turn: bool
    params: JsonObject
    available: bool
    reason: str | None

    @classmethod
    def of(cls, key: str, reason: str | None) -> "Kind":
        kind = KINDS.get(key)
        return cls(
            key=key,
            description=describe(kind),
            accepts_tools=kind.accepts_tools,
            multi_turn=kind.multi_turn,
            params=params_schema(kind),
            available=reason is None,
            reason=reason,
        )


class KindList(ResponseModel):
    """All agent kinds."""

    kinds: list[Kind]


def list_all_kinds(reason: Callable[[type[BaseAgent]], str | None]) -> KindList:
    """Return all kinds, with aliases after the kinds that they name. ``reason`` returns why a kind is not available, or None."""
    return KindList(kinds=[Kind.of(key, reason(KINDS.get(key))) for key in KINDS.keys()])  # noqa: SIM118 (KINDS is not a dict)
