"""A tenant's effective settings: the process's, overlaid by the file's for this tenant, overlaid by what the tenant stored."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
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
from spass.tenancy.scalars import CompactStrategy
from spass.tenancy.stored_settings import KEYS, ConfigValues, SettingRules, StoredSettings, settings_update

if TYPE_CHECKING:
    from spass.aws.attributes import Item
    from spass.aws.clients import TenantStore
    from spass.aws.swap import Participant
    from spass.tenancy.memory_notes import NoteResult

FRESH_SECONDS: Final = 30.0
"""How long what was read is used. A reply may be a second or two old itself; every process knows a change after a minute."""
_PAUSE_SECONDS: Final = 5.0  # after a read that failed, before the next: each takes seconds to fail


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
class TenantSettings:
    """``sources`` has one entry for each other field."""

    compact_strategy: CompactStrategy
    compact_keep_last_n: int
    compact_observation_mask: bool
    compact_summary_model: str | None
    system_prompt: str | None
    memory: str | None
    tools_enabled_default: tuple[str, ...]
    rag_top_k: int
    monthly_budget_usd: Decimal | None
    tokens_per_minute: int | None
    sources: Mapping[str, SettingSource]

    def answer(self) -> EffectiveConfig:
        config = ConfigValues.model_construct(**{key: getattr(self, key) for key in KEYS})
        return EffectiveConfig(config=config, sources={key: self.sources[key] for key in KEYS})


@dataclass(frozen=True, slots=True)
class _Known:
    """What a process knows of a tenant; ``until`` when it may be used unasked. ``stale`` if the table did not answer since."""

    version: int
    settings: TenantSettings
    until: float
    stale: bool = False


class Cascade:
    """The settings of every tenant. One for the process.

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
        self._reads: dict[TenantId, asyncio.Task[TenantSettings]] = {}

    async def effective(self, store: "TenantStore", *, bypass_cache: bool = False) -> TenantSettings:
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
            return await self._refreshed(store, consistent=True)
        reading = self._reads.get(store.tenant)
        if reading is None or reading.get_loop() is not asyncio.get_running_loop():
            reading = self._reads[store.tenant] = asyncio.create_task(self._refreshed(store))
            reading.add_done_callback(lambda done: self._forget_read(store.tenant, done))
        return await asyncio.shield(reading)

    async def described(self, store: "TenantStore") -> TenantSettings:
        """What holds for the tenant of ``store`` now, whichever process changed it last.

        Raises:
            StorageUnavailable: the table does not answer.
        """
        asked = self._clock()
        return self._learn(store.tenant, await store.table.get(tenant_config(store.tenant)), asked)

    async def change(self, store: "TenantStore", changes: Mapping[str, Json]) -> TenantSettings:
        """Stores ``changes``, all of them or none; null clears what was stored, and what is not named stays as it is. In this
        process they hold from now on, in every other within a minute. Made twice, a change is the same.

        Raises:
            InvalidRequest: a key is unknown or a value bad.
            StorageUnavailable: the table does not answer; whether the change took effect is unknown.
        """
        checked = self._rules.validate(changes)
        if not changes:
            return await self.described(store)
        if checked.monthly_budget_usd is not None:
            from spass.limits.shared_limit import forget_spending

            await forget_spending(store.table, partial(tenant_limit, store.tenant))
        write, asked = settings_update(store.tenant, changes, checked), self._clock()
        try:
            item = await store.table.write(write)
        except (StorageUnavailable, asyncio.CancelledError):
            self._doubt(store.tenant)
            raise
        return self._learn(store.tenant, item, asked)

    async def remember(
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
            return self._layered(store.tenant, self._rules.stored(item)).memory

        asked = self._clock()
        try:
            noted, item = await append(store, note, memory_of, participant, deadline)
        except (StorageUnavailable, asyncio.CancelledError):
            self._doubt(store.tenant)
            raise
        self._learn(store.tenant, item, asked)
        return noted

    async def _refreshed(self, store: "TenantStore", *, consistent: bool = False) -> TenantSettings:
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
        return self._learn(store.tenant, item, asked)

    def _learn(self, tenant: TenantId, item: "Item | None", asked: float) -> TenantSettings:
        """What holds by ``item``, for which the table was asked at ``asked``; or by what is known already, if that is newer:
        replies may come in another order than the changes were made, and from a replica that lags."""
        stored, known = self._rules.stored(item), self._known.get(tenant)
        if known is not None and stored.version <= known.version:
            settings = known.settings
        else:
            settings = self._layered(tenant, stored)
            if stored.ignored:
                line: dict[str, Json] = {"at": now(), "level": "warning", "event": "tenant_config_ignored"}
                write_line({**line, "tenant": tenant, "settings": [*stored.ignored]})
        version = max(stored.version, known.version if known else 0)
        self._known[tenant] = _Known(version, settings, asked + FRESH_SECONDS)
        return settings

    def _doubt(self, tenant: TenantId) -> None:
        """A change may have been made: whoever asks next reads."""
        if (known := self._known.get(tenant)) is not None:
            self._known[tenant] = replace(known, until=float("-inf"))

    def _forget_read(self, tenant: TenantId, read: asyncio.Task[TenantSettings]) -> None:
        if self._reads.get(tenant) is read:
            del self._reads[tenant]

    def _layered(self, tenant: TenantId, stored: StoredSettings) -> TenantSettings:
        none = TenantDefaults()
        own = next((entry.defaults for entry in self._config.tenants if entry.id == tenant), none)
        layers = ((SettingSource.DB, stored.said), (SettingSource.YAML, own))
        base = (SettingSource.PROCESS, self._config.defaults)
        said = {key: next((layer for layer in layers if key in layer[1].model_fields_set), base) for key in KEYS}
        return TenantSettings(
            compact_strategy=said["compact_strategy"][1].compact_strategy,
            compact_keep_last_n=said["compact_keep_last_n"][1].compact_keep_last_n,
            compact_observation_mask=said["compact_observation_mask"][1].compact_observation_mask,
            compact_summary_model=said["compact_summary_model"][1].compact_summary_model,
            system_prompt=said["system_prompt"][1].system_prompt,
            memory=said["memory"][1].memory,
            tools_enabled_default=said["tools_enabled_default"][1].tools_enabled_default,
            rag_top_k=said["rag_top_k"][1].rag_top_k,
            monthly_budget_usd=said["monthly_budget_usd"][1].monthly_budget_usd,
            tokens_per_minute=said["tokens_per_minute"][1].tokens_per_minute,
            sources={key: source for key, (source, _) in said.items()},
        )
