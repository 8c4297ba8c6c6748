"""The settings that a tenant stored: the item in the table, the checks of a change, and the notes in the setting ``memory``.

Each setting is an attribute of its own, so changes of different settings do not undo each other. ``version`` grows with every
change, so that a reader never goes back to an older state, in whatever order replies arrive.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, ValidationError, WithJsonSchema

from spass.core.errors import InvalidRequest
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.text_checks import did_you_mean
from spass.core.time import Deadline
from spass.store.keys import tenant_config
from spass.store.writes import ITEM_ABSENT, Equals, Item, Update, Value
from spass.tenancy.config import MAX_MEMORY_BYTES, GatewayConfig, TenantDefaults
from spass.tenancy.config_file import find_unknown_names
from spass.tenancy.response_model import ResponseModel
from spass.tenancy.scalars import Money
from spass.tenancy.validation_messages import explain_error
from spass.tenancy.yaml_source import Loc, format_loc

if TYPE_CHECKING:
    from spass.store.swap import Participant, Swap
    from spass.store.tenant_store import TenantStore

KEYS: Final = tuple(TenantDefaults.model_fields)
_MAX_REPORTED: Final = 20
_MAX_SHOWN: Final = 64  # characters of an unknown key


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings of one item. ``values.model_fields_set`` has the names of those that the tenant set.

    ``ignored`` has the names of settings that are no longer valid (a model left the catalogue). They count as not set.
    """

    version: int
    values: TenantDefaults
    ignored: tuple[str, ...] = ()


def _parse_number(value: object) -> object:
    if isinstance(value, str | bool):
        raise ValueError("must be a number")  # noqa: TRY004 (pydantic reads ValueErrors)
    return Decimal(str(value)) if isinstance(value, int | float) else value


def to_json_number(value: int | Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)


class ConfigValues(TenantDefaults):
    """The settings of a tenant."""

    model_config = ResponseModel.model_config

    monthly_budget_usd: (
        Annotated[
            Money,
            BeforeValidator(_parse_number),
            PlainSerializer(to_json_number),
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
"""Changes of settings. Null clears one. ``SettingRules`` checks them, because it knows the models and the tools."""


class SettingRules:
    """Check settings as ``gateway.yaml`` does. ``tool_names`` are the known tools; None leaves them unchecked."""

    def __init__(self, config: GatewayConfig, tool_names: Collection[str] | None) -> None:
        self._config = config
        self._tool_names = tool_names

    def validate(self, changes: Mapping[str, Json]) -> TenantDefaults:
        """Return ``changes`` without those that clear a setting. Raise ``InvalidRequest``, which names each unknown key and wrong
        value."""
        problems: list[tuple[Loc, str]] = [
            ((key,), f"unknown key{did_you_mean(key, KEYS)}") for key in changes if key not in KEYS
        ]
        values = {key: value for key, value in changes.items() if key in KEYS and value is not None}
        try:
            change = ConfigValues.model_validate(values)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            problems += [(detail["loc"], explain_error(detail["type"], detail["msg"])) for detail in details]
            raise _invalid_request(problems) from None
        problems += find_unknown_names(change, self._config, self._tool_names)
        if problems:
            raise _invalid_request(problems)
        return change

    def parse_item(self, item: Item | None) -> StoredSettings:
        if item is None:
            return StoredSettings(0, TenantDefaults())
        attributes = {key: item[key] for key in KEYS if key in item}
        values = _keep_valid(attributes)
        if unknown := {loc[0] for loc, _ in find_unknown_names(values, self._config, self._tool_names)}:
            values = _keep_valid({key: value for key, value in attributes.items() if key not in unknown})
        return StoredSettings(_read_version(item), values, tuple(sorted(attributes.keys() - values.model_fields_set)))


def settings_update(tenant: TenantId, changes: Mapping[str, Json], checked: TenantDefaults) -> Update:
    """Return the write that stores ``checked``, the valid values of ``changes``, and removes what ``changes`` sets to null."""
    values: dict[str, Any] = {key: getattr(checked, key) for key, value in changes.items() if value is not None}
    return Update(
        tenant_config(tenant),
        set={key: str(value) if isinstance(value, Decimal) else value for key, value in values.items()},
        remove=tuple(key for key in changes if key not in values),
        add={"version": 1},
    )


def _keep_valid(attributes: Mapping[str, Value]) -> TenantDefaults:
    try:
        return TenantDefaults.model_validate(attributes)
    except ValidationError as error:
        invalid = {detail["loc"][0] for detail in error.errors(include_url=False, include_input=False)}
        return TenantDefaults.model_validate({key: value for key, value in attributes.items() if key not in invalid})


def _invalid_request(problems: Sequence[tuple[Loc, str]]) -> InvalidRequest:
    reports = [(tuple(part[:_MAX_SHOWN] if isinstance(part, str) else part for part in loc), text) for loc, text in problems]
    errors: list[Json] = [{"loc": ["body", *loc], "message": text, "type": InvalidRequest.code} for loc, text in reports]
    loc, text = reports[0]
    more = f" (and {len(reports) - 1} more)" if len(reports) > 1 else ""
    return InvalidRequest(
        f"{format_loc(loc)}: {text}{more}", param=".".join(map(str, loc)), details={"errors": errors[:_MAX_REPORTED]}
    )


def _read_version(item: Item) -> int:
    version = item.get("version")
    return version if isinstance(version, int) else 0


@dataclass(frozen=True, slots=True)
class NoteResult:
    """The size of the memory after a note, in bytes of UTF-8."""

    memory_size_bytes: int


def append_line(memory: str | None, note: str) -> str:
    """Return ``memory`` with ``note`` as its last line, or raise ``InvalidRequest`` if it would exceed ``MAX_MEMORY_BYTES``."""
    lines = f"{memory.rstrip()}\n{note}" if memory and memory.strip() else note
    if (size := len(lines.encode())) > MAX_MEMORY_BYTES:
        raise InvalidRequest(
            f"The memory may have {MAX_MEMORY_BYTES} bytes; with this note it would have {size}. Write a shorter note, or ask an "
            "administrator to shorten the memory (PUT /v1/tenant/config with a new memory).",
            param="note",
        )
    return lines


async def append_note(
    store: "TenantStore",
    note: str,
    get_memory: Callable[[Item | None], str | None],
    participant: "Participant[NoteResult]",
    deadline: Deadline,
) -> tuple[NoteResult, Item]:
    """Append ``note`` to the memory in force, which ``get_memory`` reads from the tenant's item. Return the result and the item.

    The write is conditional on the item that was read, so concurrent notes are not lost. Raise what ``Cascade.append_memory``
    raises.
    """
    from spass.store.swap import Swap, swap  # imported here because few processes append notes

    key = tenant_config(store.tenant)
    after: Item = {}

    async def attempt() -> "Swap[NoteResult]":
        nonlocal after
        before = await store.table.get(key)
        memory = append_line(get_memory(before), note)
        version = _read_version(before or {})
        changed: Item = {"memory": memory, "version": version + 1}
        after = {**(before or {}), **changed}
        unchanged = ITEM_ABSENT if before is None else Equals("version", version)
        return Swap(NoteResult(len(memory.encode())), Update(key, set=changed, when=unchanged))

    return await swap(store, attempt, deadline, participant), after
