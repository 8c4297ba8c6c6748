"""Read objects that clients write, strictly."""

from itertools import islice
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from spass.core.text_checks import did_you_mean

_MAX_SUGGESTIONS: Final = 20  # each is compared with all known names, and a body may hold very many
_MAX_NAME_CHARACTERS: Final = 64


class StrictBody(BaseModel):
    """An object without unknown keys, because a misspelt key would have no effect. Values are not converted.

    Unknown keys are reported before all other errors, with the most similar known key.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_keys(cls, data: object) -> object:
        known = cls.model_fields
        if isinstance(data, dict) and (unknown := [name for name in data if name not in known]):
            suggestions = [_suggest(name, list(known)) for name in islice(unknown, _MAX_SUGGESTIONS)]
            suggestions += [""] * (len(unknown) - len(suggestions))
            raise ValidationError.from_exception_data(cls.__name__, list(map(_unknown_key_error, unknown, suggestions)))
        return data


def _suggest(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) if len(name) <= _MAX_NAME_CHARACTERS else ""


def _unknown_key_error(name: str, suggestion: str) -> InitErrorDetails:
    reason = PydanticCustomError("unknown_parameter", "unknown parameter{suggestion}", {"suggestion": suggestion})
    return InitErrorDetails(type=reason, loc=(name,), input=None)
