"""A tenant's effective settings: the file's defaults, then its entry for the tenant, then the values that the tenant stored."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import WithJsonSchema

from spass.core.errors import AboveCeiling, StorageUnavailable
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.redaction.log import write_event
from spass.store.keys import tenant_config, tenant_limit
from spass.tenancy.config import CEILINGS, GatewayConfig, TenantConfig
from spass.tenancy.response_model import LEAVE_OUT_IF_EMPTY, ResponseModel
from spass.tenancy.stored_settings import (
    KEYS,
    ConfigValues,
    NoteResult,
    SettingRules,
    StoredSettings,
    append_note,
    settings_update,
    to_json_number,
)

if TYPE_CHECKING:
    from spass.store.swap import Participant
    from spass.store.tenant_store import TenantStore
    from spass.store.writes import Item

FRESH_SECONDS: Final = 30.0
"""Seconds for which cached settings are used. A reply may itself be two seconds old, so every process knows a change after a
minute."""
_PAUSE_SECONDS: Final = 5.0  # between two failed reads, each of which takes seconds


class SettingSource(StrEnum):
    """The source of a setting, weakest first: the gateway's defaults, the operator's file, the tenant."""

    PROCESS = "process"
    YAML = "yaml"
    DB = "db"


_SOURCES: Final = {
    "type": "object",
    "properties": {key: {"type": "string", "enum": [*SettingSource]} for key in KEYS},
    "required": [*KEYS],
    "additionalProperties": False,
}


_CEILINGS: Final = {
    "type": "object",
    "properties": {key: {"type": "number", "minimum": 0} for key in CEILINGS},
    "additionalProperties": False,
}


class EffectiveConfig(ResponseModel):
    """The settings in force, and the source of each. `ceilings` are the highest values of limits that the operator allows; it is
    absent if there are none."""

    config: ConfigValues
    sources: Annotated[dict[str, SettingSource], WithJsonSchema(_SOURCES)]
    ceilings: Annotated[dict[str, int | float] | None, WithJsonSchema(_CEILINGS), LEAVE_OUT_IF_EMPTY] = None


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """Settings that are used ``until`` a time of the clock. ``stale``: the last read failed."""

    version: int
    settings: EffectiveConfig
    until: float
    stale: bool = False


class Cascade:
    """The settings of every tenant. A process has one cascade.

    ``tool_names`` are the tools that a tenant may name; None: do not check. ``clock`` counts seconds and never goes back.
    """

    def __init__(
        self,
        config: GatewayConfig,
        tool_names: Collection[str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._rules = SettingRules(config, tool_names)
        self._clock = clock
        self._cache: dict[TenantId, _CacheEntry] = {}
        self._reads: dict[TenantId, asyncio.Task[EffectiveConfig]] = {}

    async def effective(self, store: "TenantStore", *, bypass_cache: bool = False) -> EffectiveConfig:
        """Return the effective settings of the tenant of ``store``. They are at most ``FRESH_SECONDS`` old, or older while the
        table does not answer. Concurrent callers share one read.

        ``bypass_cache`` reads them now, for callers that may change settings: the process that made a change rarely serves the
        next request too. Raise ``StorageUnavailable`` only if this process has never read the settings.
        """
        cached = self._cache.get(store.tenant)
        if cached is not None and self._clock() < cached.until and (cached.stale or not bypass_cache):
            return cached.settings
        if bypass_cache:
            return await self._refresh(store, consistent=True)
        read = self._reads.get(store.tenant)
        if read is None or read.get_loop() is not asyncio.get_running_loop():
            read = self._reads[store.tenant] = asyncio.create_task(self._refresh(store))
            read.add_done_callback(lambda done: self._forget_read(store.tenant, done))
        return await asyncio.shield(read)

    async def read(self, store: "TenantStore") -> EffectiveConfig:
        """Read the effective settings of the tenant of ``store``, with the last change of any process."""
        started = self._clock()
        return self._update_cache(store.tenant, await store.table.get(tenant_config(store.tenant)), started)

    async def change(self, store: "TenantStore", changes: Mapping[str, Json]) -> EffectiveConfig:
        """Store all of ``changes`` or none, and return the effective settings. Null clears a stored value.

        This process uses them from now on, every other process within a minute. A repeated change has the same result.

        Raises:
            InvalidRequest: a key is unknown or a value is wrong.
            AboveCeiling: a limit is above the tenant's ceiling.
            StorageUnavailable: it is unknown whether the change took effect.
        """
        checked = self._rules.validate(changes)
        for key, ceiling in self._operators_entry(store.tenant).limits.ceilings.items():
            _check_ceiling(key, getattr(checked, key), ceiling)
        if not changes:
            return await self.read(store)
        if checked.monthly_budget_usd is not None:
            from spass.limits.shared_limit import forget_spending

            await forget_spending(store.table, partial(tenant_limit, store.tenant))
        write, started = settings_update(store.tenant, changes, checked), self._clock()
        try:
            item = await store.table.write(write)
        except (StorageUnavailable, asyncio.CancelledError):
            self._expire_cache(store.tenant)
            raise
        return self._update_cache(store.tenant, item, started)

    async def append_memory(
        self, store: "TenantStore", note: str, participant: "Participant[NoteResult]", deadline: Deadline
    ) -> NoteResult:
        """Append ``note``, one line, to the memory in force, in one transaction with the participant's writes. This process uses
        it from now on. Two concurrent writers do not lose each other's notes.

        Raises:
            InvalidRequest: the memory has no room for the note.
            StorageUnavailable: the table does not answer, or other writers won every race until the deadline.
            SpassError: the participant refuses the write.
        """

        def get_memory(item: "Item | None") -> str | None:
            return self._merge(store.tenant, self._rules.parse_item(item)).config.memory

        started = self._clock()
        try:
            result, item = await append_note(store, note, get_memory, participant, deadline)
        except (StorageUnavailable, asyncio.CancelledError):
            self._expire_cache(store.tenant)
            raise
        self._update_cache(store.tenant, item, started)
        return result

    async def _refresh(self, store: "TenantStore", *, consistent: bool = False) -> EffectiveConfig:
        started = self._clock()
        try:
            item = await store.table.get(tenant_config(store.tenant), consistent=consistent)
        except StorageUnavailable:
            cached = self._cache.get(store.tenant)
            if cached is None:
                raise
            if not cached.stale:
                write_event("tenant_config_stale", {"tenant": store.tenant})
            self._cache[store.tenant] = replace(cached, until=self._clock() + _PAUSE_SECONDS, stale=True)
            return cached.settings
        return self._update_cache(store.tenant, item, started)

    def _update_cache(self, tenant: TenantId, item: "Item | None", started: float) -> EffectiveConfig:
        """Cache the settings of ``item`` and return those in force. ``started`` is the time at which the call to the table began.
        Keep newer cached settings: replies may arrive out of order, or from a replica that lags."""
        stored, cached = self._rules.parse_item(item), self._cache.get(tenant)
        if cached is not None and stored.version <= cached.version:
            settings = cached.settings
        else:
            settings = self._merge(tenant, stored)
            if stored.ignored:
                write_event("tenant_config_ignored", {"tenant": tenant, "settings": [*stored.ignored]})
        version = max(stored.version, cached.version if cached else 0)
        self._cache[tenant] = _CacheEntry(version, settings, started + FRESH_SECONDS)
        return settings

    def _expire_cache(self, tenant: TenantId) -> None:
        """Make the next use read the settings, because a change may have taken effect."""
        if (cached := self._cache.get(tenant)) is not None:
            self._cache[tenant] = replace(cached, until=float("-inf"))

    def _forget_read(self, tenant: TenantId, read: asyncio.Task[EffectiveConfig]) -> None:
        if self._reads.get(tenant) is read:
            del self._reads[tenant]

    def _merge(self, tenant: TenantId, stored: StoredSettings) -> EffectiveConfig:
        """Return the settings in force: the value of the strongest source that sets it, or its ceiling if that is lower."""
        entry = self._operators_entry(tenant)
        layers = ((SettingSource.DB, stored.values), (SettingSource.YAML, entry.defaults))
        base = (SettingSource.PROCESS, self._config.defaults)
        chosen = {key: next((layer for layer in layers if key in layer[1].model_fields_set), base) for key in KEYS}
        values = {key: getattr(source_values, key) for key, (_, source_values) in chosen.items()}
        sources = {key: source for key, (source, _) in chosen.items()}
        ceilings = entry.limits.ceilings
        for key, ceiling in ceilings.items():
            if values[key] is None or values[key] > ceiling:
                values[key], sources[key] = ceiling, SettingSource.YAML
        return EffectiveConfig.model_construct(
            config=ConfigValues.model_construct(**values),
            sources=sources,
            ceilings={key: to_json_number(ceiling) for key, ceiling in ceilings.items()},
        )

    def _operators_entry(self, tenant: TenantId) -> TenantConfig:
        """Return the entry of ``tenant`` in the operator's file, or one that sets nothing."""
        return next((entry for entry in self._config.tenants if entry.id == tenant), TenantConfig.model_construct(id=tenant))


def _check_ceiling(key: str, value: int | Decimal | None, ceiling: int | Decimal) -> None:
    if value is not None and value > ceiling:
        highest = to_json_number(ceiling)
        raise AboveCeiling(
            f"{key}: {to_json_number(value)} is above the ceiling of {highest} that the operator set for this tenant. Send at "
            f"most {highest}, or ask the operator to raise it.",
            param=key,
            details={"key": key, "value": to_json_number(value), "ceiling": highest},
        )
