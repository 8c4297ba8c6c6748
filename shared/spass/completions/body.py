"""The two kinds of objects in a request of OpenAI's clients: the body, read strictly, and what is nested in it."""

from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from spass.tenancy.yaml_source import did_you_mean

_MAX_SUGGESTIONS: Final = 20  # each compares the name with all parameters, and a body may hold very many names
_LONGEST_NAME: Final = 64

_NO_EFFECT: Final = Field(default=None, description="Accepted, without effect.")


class Nested(BaseModel):
    """An object inside a body: unknown keys are dropped, and values are not converted.

    Clients send back whatever they found in an answer of some server, with keys of their own.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Body(BaseModel):
    """A whole body: an unknown parameter is refused, because a misspelt one would be silently without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # Clients send these to every server, some with values that OpenAI does not know.
    user: Any = None
    metadata: Any = _NO_EFFECT
    store: Any = _NO_EFFECT
    service_tier: Any = _NO_EFFECT
    safety_identifier: Any = _NO_EFFECT
    prompt_cache_key: Any = _NO_EFFECT
    prompt_cache_retention: Any = _NO_EFFECT

    @model_validator(mode="before")
    @classmethod
    def _only_known_parameters(cls, data: object) -> object:
        known = cls.model_fields
        if isinstance(data, dict) and (unknown := [name for name in data if name not in known]):
            suggestions = [_suggestion(name, list(known)) for name in islice(unknown, _MAX_SUGGESTIONS)]
            suggestions += [""] * (len(unknown) - len(suggestions))
            raise ValidationError.from_exception_data(cls.__name__, list(map(_unknown, unknown, suggestions)))
        return data


def _suggestion(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) if len(name) <= _LONGEST_NAME else ""


def _unknown(name: str, suggestion: str) -> InitErrorDetails:
    reason = PydanticCustomError("unknown_parameter", "unknown parameter{suggestion}", {"suggestion": suggestion})
    return InitErrorDetails(type=reason, loc=(name,), input=None)
