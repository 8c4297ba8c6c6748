"""What a tenant has set for itself: the item in the table, and what a change to it must look like.

Each setting is an attribute of its own, so that two changes of different settings never undo each other. ``version`` grows with
every change: who has seen one never goes back behind it, in whatever order replies arrive.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, ValidationError, WithJsonSchema

from spass.aws.attributes import Item, Value
from spass.aws.keys import tenant_config
from spass.aws.writes import Update
from spass.core.errors import InvalidRequest
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.text_checks import did_you_mean
from spass.tenancy.config import GatewayConfig, TenantDefaults
from spass.tenancy.config_checks import unknown_names
from spass.tenancy.response_model import ResponseModel
from spass.tenancy.scalars import Money
from spass.tenancy.yaml_source import Loc, explain_error, format_loc

KEYS: Final = tuple(TenantDefaults.model_fields)
_MAX_REPORTED: Final = 20
_MAX_SHOWN: Final = 64  # characters of a key that nobody knows


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """``said`` holds what the tenant set, and nothing else is among its ``model_fields_set``. ``ignored`` are settings that were
    valid once and are not now, as when a model has left the catalogue: they count as not set."""

    version: int
    said: TenantDefaults
    ignored: tuple[str, ...] = ()


def _decimal(value: object) -> object:
    if isinstance(value, str | bool):
        raise ValueError("must be a number")  # noqa: TRY004 (pydantic reads ValueErrors)
    return Decimal(str(value)) if isinstance(value, int | float) else value


def _json_number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


class ConfigValues(TenantDefaults):
    """The settings of a tenant."""

    model_config = ResponseModel.model_config

    monthly_budget_usd: (
        Annotated[
            Money,
            BeforeValidator(_decimal),
            PlainSerializer(_json_number),
            WithJsonSchema({"type": "number", "minimum": 0, "maximum": 10**9}),
        ]
        | None
    ) = None


class _ChangeSchema:
    def __get_pydantic_json_schema__(self, _: object, __: object) -> dict[str, Any]:
        known = ConfigValues.model_json_schema(mode="serialization")["properties"]
        values = {key: schema.get("anyOf", [schema])[0] for key, schema in known.items()}
        properties = {key: {"anyOf": [value, {"type": "null"}]} for key, value in values.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}


ConfigChange = Annotated[dict[str, Any], _ChangeSchema()]
"""Some of the settings, null to clear one. ``SettingRules`` checks them, because it knows the models and the tools."""


class SettingRules:
    """What any setting must be, here as in ``gateway.yaml``. ``tool_names`` are the tools that there are; None leaves them
    unchecked."""

    def __init__(self, config: GatewayConfig, tool_names: Collection[str] | None) -> None:
        self._config = config
        self._tool_names = tool_names

    def validate(self, changes: Mapping[str, Json]) -> TenantDefaults:
        """``changes`` without those that clear a setting.

        Raises:
            InvalidRequest: a key is unknown or a value bad; it names each.
        """
        problems: list[tuple[Loc, str]] = [
            ((key,), f"unknown key{did_you_mean(key, KEYS)}") for key in changes if key not in KEYS
        ]
        said = {key: value for key, value in changes.items() if key in KEYS and value is not None}
        try:
            change = ConfigValues.model_validate(said)
        except ValidationError as error:
            raise _invalid([*problems, *_found(error)]) from None
        problems += unknown_names(change, self._config, self._tool_names)
        if problems:
            raise _invalid(problems)
        return change

    def stored(self, item: Item | None) -> StoredSettings:
        """What ``item`` says, as far as it still holds."""
        if item is None:
            return StoredSettings(0, TenantDefaults())
        held = {key: item[key] for key in KEYS if key in item}
        said = _read(held)
        if unknown := {loc[0] for loc, _ in unknown_names(said, self._config, self._tool_names)}:
            said = _read({key: value for key, value in held.items() if key not in unknown})
        return StoredSettings(version_of(item), said, tuple(sorted(held.keys() - said.model_fields_set)))


def settings_update(tenant: TenantId, changes: Mapping[str, Json], checked: TenantDefaults) -> Update:
    """Return the write that makes ``changes``, which were ``checked``: null clears, whatever is not named stays."""
    return Update(
        tenant_config(tenant),
        set={key: _attribute(getattr(checked, key)) for key, value in changes.items() if value is not None},
        remove=tuple(key for key, value in changes.items() if value is None),
        add={"version": 1},
    )


def _attribute(value: bool | int | str | Decimal | tuple[str, ...]) -> Value:
    return str(value) if isinstance(value, Decimal) else value


def _read(held: Mapping[str, Value]) -> TenantDefaults:
    """``held`` as settings, as far as it can be read."""
    try:
        return TenantDefaults.model_validate(held)
    except ValidationError as error:
        bad = {detail["loc"][0] for detail in error.errors(include_url=False, include_input=False)}
        return TenantDefaults.model_validate({key: value for key, value in held.items() if key not in bad})


def _found(error: ValidationError) -> Iterator[tuple[Loc, str]]:
    for detail in error.errors(include_url=False, include_input=False):
        yield detail["loc"], explain_error(detail["type"], detail["msg"])


def _invalid(problems: Iterable[tuple[Loc, str]]) -> InvalidRequest:
    places = [(tuple(part[:_MAX_SHOWN] if isinstance(part, str) else part for part in loc), what) for loc, what in problems]
    errors: list[Json] = [{"loc": ["body", *at], "message": what, "type": InvalidRequest.code} for at, what in places]
    (at, what), more = places[0], len(places) - 1
    message = f"{format_loc(at)}: {what}" + (f" (and {more} more)" if more else "")
    return InvalidRequest(message, param=".".join(map(str, at)), details={"errors": errors[:_MAX_REPORTED]})


def version_of(item: Item) -> int:
    """How many changes made ``item`` what it is."""
    version = item.get("version")
    return version if isinstance(version, int) else 0
