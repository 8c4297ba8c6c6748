"""A tenant's effective settings: the file's defaults, then its entry for the tenant, then the values that the tenant stored."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import WithJsonSchema

from spass.aws.keys import tenant_config, tenant_limit
from spass.aws.log import write_line
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.tenancy.config import GatewayConfig, TenantDefaults
from spass.tenancy.response_model import ResponseModel
from spass.tenancy.stored_settings import KEYS, ConfigValues, SettingRules, StoredSettings, settings_update

if TYPE_CHECKING:
    from spass.aws.attributes import Item
    from spass.aws.clients import TenantStore
    from spass.aws.swap import Participant
    from spass.tenancy.memory_notes import NoteResult

FRESH_SECONDS: Final = 30.0
"""Seconds for which a read is used. A reply may itself be two seconds old: every process knows a change after a minute."""
_PAUSE_SECONDS: Final = 5.0  # between a failed read and the next: each takes seconds to fail


class SettingSource(StrEnum):
    """Where a setting comes from, weakest first: the gateway's defaults, the operator's file, the tenant."""

    PROCESS = "process"
    YAML = "yaml"
    DB = "db"


_SOURCES: Final = {
    "type": "object",
    "properties": {key: {"type": "string", "enum": [*SettingSource]} for key in KEYS},
    "required": [*KEYS],
    "additionalProperties": False,
}


class EffectiveConfig(ResponseModel):
    """The settings in force, and where each comes from."""

    config: ConfigValues
    sources: Annotated[dict[str, SettingSource], WithJsonSchema(_SOURCES)]


@dataclass(frozen=True, slots=True)
class _Known:
    """Cached settings, valid ``until`` a time of the clock. ``stale``: the last read failed."""

    version: int
    settings: EffectiveConfig
    until: float
    stale: bool = False


class Cascade:
    """The settings of every tenant. A process has one.

    ``tool_names`` are the tools that a tenant may name; None leaves them unchecked. ``clock`` counts seconds and never goes back.
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
        self._known: dict[TenantId, _Known] = {}
        self._reads: dict[TenantId, asyncio.Task[EffectiveConfig]] = {}

    async def effective(self, store: "TenantStore", *, bypass_cache: bool = False) -> EffectiveConfig:
        """Return the effective settings of the tenant of ``store``, at most ``FRESH_SECONDS`` old, or older while the table does
        not answer. Concurrent callers share one read. ``bypass_cache`` reads them now, for callers that may change settings: the
        process that made a change is rarely the one that serves the next request.

        Raises:
            StorageUnavailable: what the tenant stored could not be read, and never was in this process.
        """
        known = self._known.get(store.tenant)
        if known is not None and self._clock() < known.until and (known.stale or not bypass_cache):
            return known.settings
        if bypass_cache:
            return await self._refresh(store, consistent=True)
        reading = self._reads.get(store.tenant)
        if reading is None or reading.get_loop() is not asyncio.get_running_loop():
            reading = self._reads[store.tenant] = asyncio.create_task(self._refresh(store))
            reading.add_done_callback(lambda done: self._forget_read(store.tenant, done))
        return await asyncio.shield(reading)

    async def read(self, store: "TenantStore") -> EffectiveConfig:
        """Read the effective settings of the tenant of ``store``, with the last change of any process.

        Raises:
            StorageUnavailable: the table does not answer.
        """
        asked = self._clock()
        return self._update_cache(store.tenant, await store.table.get(tenant_config(store.tenant)), asked)

    async def change(self, store: "TenantStore", changes: Mapping[str, Json]) -> EffectiveConfig:
        """Store all of ``changes`` or none, and return the effective settings. Null clears a stored value.

        This process uses them from now on, every other within a minute. A repeated change has the same result.

        Raises:
            InvalidRequest: a key is unknown or a value is wrong.
            StorageUnavailable: the table does not answer; whether the change took effect is unknown.
        """
        checked = self._rules.validate(changes)
        if not changes:
            return await self.read(store)
        if checked.monthly_budget_usd is not None:
            from spass.limits.shared_limit import forget_spending

            await forget_spending(store.table, partial(tenant_limit, store.tenant))
        write, asked = settings_update(store.tenant, changes, checked), self._clock()
        try:
            item = await store.table.write(write)
        except (StorageUnavailable, asyncio.CancelledError):
            self._expire_cache(store.tenant)
            raise
        return self._update_cache(store.tenant, item, asked)

    async def append_memory(
        self, store: "TenantStore", note: str, participant: "Participant[NoteResult]", deadline: Deadline
    ) -> "NoteResult":
        """Add ``note``, one line, to the memory that is in force, in one transaction with the participant's writes. This process
        reads it from now on. Two concurrent writers do not lose each other's notes.

        Raises:
            InvalidRequest: the memory has no room for it.
            StorageUnavailable: the table does not answer, or the deadline passed among too many other writers.
            SpassError: the participant's refusal.
        """
        from spass.tenancy.memory_notes import append

        def memory_of(item: "Item | None") -> str | None:
            return self._merge(store.tenant, self._rules.parse_item(item)).config.memory

        asked = self._clock()
        try:
            result, item = await append(store, note, memory_of, participant, deadline)
        except (StorageUnavailable, asyncio.CancelledError):
            self._expire_cache(store.tenant)
            raise
        self._update_cache(store.tenant, item, asked)
        return result

    async def _refresh(self, store: "TenantStore", *, consistent: bool = False) -> EffectiveConfig:
        asked = self._clock()
        try:
            item = await store.table.get(tenant_config(store.tenant), consistent=consistent)
        except StorageUnavailable:
            known = self._known.get(store.tenant)
            if known is None:
                raise
            if not known.stale:
                line: dict[str, Json] = {"at": now(), "level": "warning", "event": "tenant_config_stale"}
                write_line({**line, "tenant": store.tenant})
            self._known[store.tenant] = replace(known, until=self._clock() + _PAUSE_SECONDS, stale=True)
            return known.settings
        return self._update_cache(store.tenant, item, asked)

    def _update_cache(self, tenant: TenantId, item: "Item | None", asked: float) -> EffectiveConfig:
        """Cache the settings of ``item``, read at ``asked``, and return those in force.

        Cached settings stay if they are newer: replies may arrive out of order, or from a replica that lags.
        """
        stored, known = self._rules.parse_item(item), self._known.get(tenant)
        if known is not None and stored.version <= known.version:
            settings = known.settings
        else:
            settings = self._merge(tenant, stored)
            if stored.ignored:
                line: dict[str, Json] = {"at": now(), "level": "warning", "event": "tenant_config_ignored"}
                write_line({**line, "tenant": tenant, "settings": [*stored.ignored]})
        version = max(stored.version, known.version if known else 0)
        self._known[tenant] = _Known(version, settings, asked + FRESH_SECONDS)
        return settings

    def _expire_cache(self, tenant: TenantId) -> None:
        """Read at the next use, because a change may have been made."""
        if (known := self._known.get(tenant)) is not None:
            self._known[tenant] = replace(known, until=float("-inf"))

    def _forget_read(self, tenant: TenantId, read: asyncio.Task[EffectiveConfig]) -> None:
        if self._reads.get(tenant) is read:
            del self._reads[tenant]

    def _merge(self, tenant: TenantId, stored: StoredSettings) -> EffectiveConfig:
        """Return the settings in force: of each the value of the strongest source that sets it."""
        none = TenantDefaults()
        own = next((entry.defaults for entry in self._config.tenants if entry.id == tenant), none)
        layers = ((SettingSource.DB, stored.values), (SettingSource.YAML, own))
        base = (SettingSource.PROCESS, self._config.defaults)
        chosen = {key: next((layer for layer in layers if key in layer[1].model_fields_set), base) for key in KEYS}
        return EffectiveConfig.model_construct(
            config=ConfigValues.model_construct(**{key: getattr(values, key) for key, (_, values) in chosen.items()}),
            sources={key: source for key, (source, _) in chosen.items()},
        )
