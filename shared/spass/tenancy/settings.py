"""A tenant's effective settings: the process's, overlaid by the file's for this tenant, overlaid by what the tenant stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from spass.aws.clients import TenantStore
from spass.core.ids import TenantId
from spass.tenancy.config import GatewayConfig, TenantDefaults


class Source(StrEnum):
    """Where a setting was said, weakest first."""

    PROCESS = "process"
    YAML = "yaml"
    DB = "db"


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """``sources`` has one entry for each other field."""

    compact_strategy: Literal["auto", "manual", "off"]
    compact_keep_last_n: int
    compact_observation_mask: bool
    compact_summary_model: str | None
    system_prompt: str | None
    memory: str | None
    tools_enabled_default: tuple[str, ...]
    rag_top_k: int
    monthly_budget_usd: Decimal | None
    tokens_per_minute: int | None
    sources: Mapping[str, Source]


class Cascade:
    """The settings of every tenant. One for the process."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config

    async def effective(self, store: TenantStore) -> TenantSettings:
        """What holds for the tenant of ``store`` now.

        Raises:
            StorageUnavailable: what the tenant stored could not be read, and never was in this process.
        """
        return effective(self._config, store.tenant)


def effective(config: GatewayConfig, tenant: TenantId) -> TenantSettings:
    """What holds for ``tenant``; for one that the file does not know, what holds for the process."""
    own = next((entry.defaults for entry in config.tenants if entry.id == tenant), TenantDefaults())
    says = own.model_fields_set
    base = config.defaults
    return TenantSettings(
        compact_strategy=(own if "compact_strategy" in says else base).compact_strategy,
        compact_keep_last_n=(own if "compact_keep_last_n" in says else base).compact_keep_last_n,
        compact_observation_mask=(own if "compact_observation_mask" in says else base).compact_observation_mask,
        compact_summary_model=(own if "compact_summary_model" in says else base).compact_summary_model,
        system_prompt=(own if "system_prompt" in says else base).system_prompt,
        memory=(own if "memory" in says else base).memory,
        tools_enabled_default=(own if "tools_enabled_default" in says else base).tools_enabled_default,
        rag_top_k=(own if "rag_top_k" in says else base).rag_top_k,
        monthly_budget_usd=(own if "monthly_budget_usd" in says else base).monthly_budget_usd,
        tokens_per_minute=(own if "tokens_per_minute" in says else base).tokens_per_minute,
        sources={key: Source.YAML if key in says else Source.PROCESS for key in TenantDefaults.model_fields},
    )
