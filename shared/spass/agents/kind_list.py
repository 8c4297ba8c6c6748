"""The list of agent kinds."""

from collections.abc import Callable

from spass.agents.kinds.base import BaseAgent
from spass.agents.kinds.registry import KINDS
from spass.agents.parameters import describe, params_schema
from spass.tenancy.response_model import JsonObject, ResponseModel


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
