"""The schema of ``gateway.yaml``, the operator's one file."""

from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Annotated, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema, model_validator

from spass.core.errors import ModelNotFound
from spass.core.ids import AGENT_MODEL_PREFIX, TenantId
from spass.core.text_checks import limit_bytes
from spass.tenancy.config_problem import ConfigProblem
from spass.tenancy.scalars import (
    ANY_MODEL,
    AbsoluteFolder,
    BaseUrl,
    Bound,
    CatalogueName,
    CompactStrategy,
    Count,
    Day,
    EnvironmentVariable,
    KeepLastN,
    Money,
    Name,
    Positive,
    Price,
    Seconds,
    Sha256,
    StoredBound,
    TenantName,
    TopK,
)

DEFAULT_READ_TIMEOUT: Final = 120.0
"""Seconds between two bytes of an answer, for a backend without ``timeout``."""

MAX_SYSTEM_PROMPT_BYTES: Final = 32 * 1024
MAX_MEMORY_BYTES: Final = 16 * 1024
_MAX_TOOLS: Final = 128
MAX_EMBEDDING_INPUTS: Final = 2048
"""Texts in one request of embeddings: OpenAI's limit."""


def _replace_none(value: object) -> object:
    return () if value is None else value


def _size_schema(limit: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "maxLength": limit, "description": f"At most {limit // 1024} KiB of UTF-8."})


_SystemPrompt = Annotated[str, AfterValidator(limit_bytes(MAX_SYSTEM_PROMPT_BYTES)), _size_schema(MAX_SYSTEM_PROMPT_BYTES)]
_Memory = Annotated[str, AfterValidator(limit_bytes(MAX_MEMORY_BYTES)), _size_schema(MAX_MEMORY_BYTES)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BackendConfig(_Section):
    """A backend that serves models. Of several that serve a model, failover tries the one with the lowest ``priority`` first.

    ``timeout`` is the read timeout: the longest silence between two bytes, in seconds. A blocking answer has a limit only if
    ``timeout`` is set.
    """

    hints: ClassVar[dict[str, str]] = {
        "api_key": "do not write a key here; name its variable: api_key_env",
        "key": "do not write a key here; name its variable: api_key_env",
        "models": "write supported_models",
        "url": "write base_url",
    }

    name: Name
    provider: Name
    api_key_env: EnvironmentVariable | None = None
    base_url: BaseUrl | None = None
    priority: Count = 1
    rate_limit_tpm: Positive | None = None
    max_concurrent: Positive | None = None
    timeout: Seconds | None = None
    supported_models: tuple[Name, ...] = ()
    model_names: dict[Name, Name] = {}

    @property
    def read_timeout(self) -> float:
        return DEFAULT_READ_TIMEOUT if self.timeout is None else self.timeout

    @model_validator(mode="before")
    @classmethod
    def _set_default_name(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("name") is None and isinstance(data.get("provider"), str):
            return {**data, "name": data["provider"]}
        return data


class LlmConfig(_Section):
    """The calls of models. ``retries`` follow the first attempt and count over all backends; delays are in seconds."""

    strategy: Literal["failover", "round-robin", "least-loaded"] = "failover"
    retries: Annotated[int, Field(ge=0, le=20, strict=True)] = 3
    retry_base_delay: Annotated[float, Field(ge=0, le=900, allow_inf_nan=False)] = 1.0
    retry_max_delay: Annotated[float, Field(ge=0, le=900, allow_inf_nan=False)] = 60.0
    backends: Annotated[tuple[BackendConfig, ...], BeforeValidator(_replace_none)] = ()


class ModelConfig(_Section):
    """A model of the catalogue. ``context_window`` is in tokens, prices in US dollars per million tokens.

    With ``sampling: false``, requests to the model have no ``temperature``, ``top_p`` and the like. With ``begins_thinking``, the
    model's answers begin with think text that has no opening tag. With ``tool_calls: text``, the model may write its calls as
    text (``calls.text_calls``). ``created`` is the day of the model's release; lists of models show its first second (UTC).
    """

    name: CatalogueName
    kind: Literal["chat", "embedding"] = "chat"
    context_window: Positive
    dimensions: Annotated[int, Field(gt=0, le=16384, strict=True)] | None = None
    sampling: Annotated[bool, Field(strict=True)] = True
    begins_thinking: Annotated[bool, Field(strict=True)] = False
    tool_calls: Literal["native", "text"] = "native"
    created: Day = date(2026, 11, 1)
    usd_per_mtok_in: Price | None = None
    usd_per_mtok_out: Price | None = None


class SearchConfig(_Section):
    """The provider of the tool ``web_search``; None is Wikipedia. ``searxng`` needs the ``base_url`` of a server."""

    hints: ClassVar[dict[str, str]] = {
        "api_key": "do not write a key here; name its variable: api_key_env",
        "key": "do not write a key here; name its variable: api_key_env",
        "url": "write base_url",
        "name": "write provider",
    }

    provider: Literal["searxng", "tavily"] | None = None
    base_url: BaseUrl | None = None
    api_key_env: EnvironmentVariable | None = None

    @property
    def key_variable(self) -> str | None:
        """Return the environment variable that holds the provider's key, or None if it needs no key."""
        if self.provider == "tavily" and not self.api_key_env and not self.base_url:
            return "TAVILY_API_KEY"
        return self.api_key_env if self.provider else None


class HarnessesConfig(_Section):
    """The foreign agents of this machine. They work in folders below ``roots``; None allows none."""

    hints: ClassVar[dict[str, str]] = {
        "api_key": "do not write a key here; set LLM_API_KEY or ANTHROPIC_API_KEY in the environment",
        "root": "write roots, a list of folders",
        "workspaces": "write roots",
    }

    roots: tuple[AbsoluteFolder, ...] | None = None


class GatewayLimits(_Section):
    """Limits of all tenants. The bounds from ``turns`` on count for each tenant separately, and its entry may have others."""

    hints: ClassVar[dict[str, str]] = dict.fromkeys(
        ("monthly_budget_usd", "tokens_per_minute"), "write it under limits of a tenant, or under defaults"
    )

    embedding_inputs: Annotated[int, Field(ge=1, le=MAX_EMBEDDING_INPUTS, strict=True)] = 256
    turns: Bound = 50
    followers: Bound = 25
    runs: Bound = 8
    jobs: Bound = 16
    schedules: StoredBound = 1000


class TenantDefaults(_Section):
    """Settings that cascade. The weakest source is the file's defaults, then the file's entry for a tenant. The values that the
    tenant stored are the strongest."""

    compact_strategy: CompactStrategy = "auto"
    compact_keep_last_n: Annotated[KeepLastN, Field(strict=True)] = 10
    compact_observation_mask: Annotated[bool, Field(strict=True)] = True
    compact_summary_model: Name | None = None
    system_prompt: _SystemPrompt | None = None
    memory: _Memory | None = None
    tools_enabled_default: Annotated[tuple[Name, ...], Field(max_length=_MAX_TOOLS)] = ()
    rag_top_k: Annotated[TopK, Field(strict=True)] = 5
    monthly_budget_usd: Money | None = None
    tokens_per_minute: Positive | None = None


class Defaults(TenantDefaults):
    """The defaults of all tenants. ``embedding_model`` is the same for the whole process."""

    embedding_model: Name = "all-minilm-l6-v2"


class TokenConfig(_Section):
    """A token's SHA-256 and its rights."""

    hints: ClassVar[dict[str, str]] = {
        "token": "do not write a token here; write its SHA-256: sha256",
        "hash": "write sha256",
        "models": "write allowed_models",
    }

    id: Name
    sha256: Sha256
    admin: bool = False
    allowed_models: tuple[Name, ...] = (ANY_MODEL,)


BoundName: TypeAlias = Literal["turns", "followers", "runs", "jobs", "schedules"]
CEILINGS: Final = ("monthly_budget_usd", "tokens_per_minute")


class TenantLimits(_Section):
    """The limits of a tenant. ``CEILINGS`` are those of its settings of the same names: they count at most this much. The others
    are bounds, and None is the bound of all tenants (``GatewayLimits``)."""

    monthly_budget_usd: Money | None = None
    tokens_per_minute: Positive | None = None
    turns: Bound | None = None
    followers: Bound | None = None
    runs: Bound | None = None
    jobs: Bound | None = None
    schedules: StoredBound | None = None

    @property
    def ceilings(self) -> dict[str, int | Decimal]:
        return {key: value for key, value in self if key in CEILINGS and value is not None}


class TenantConfig(_Section):
    """A tenant. With ``trusted_traces``, the traces of its clients are continued: a ``traceparent`` of theirs chooses the id by
    which a trace is sampled."""

    hints: ClassVar[dict[str, str]] = {"name": "write id", "ceilings": "write limits"}

    id: TenantName
    trusted_traces: Annotated[bool, Field(strict=True)] = False
    limits: TenantLimits = TenantLimits()
    defaults: TenantDefaults = TenantDefaults()
    tokens: Annotated[tuple[TokenConfig, ...], BeforeValidator(_replace_none)] = ()


class GatewayConfig(_Section):
    """The whole file."""

    hints: ClassVar[dict[str, str]] = {
        "backends": "write it under llm",
        "embedding_model": "write it under defaults",
    }

    llm: LlmConfig = LlmConfig()
    models: Annotated[tuple[ModelConfig, ...], BeforeValidator(_replace_none)] = ()
    limits: GatewayLimits = GatewayLimits()
    search: SearchConfig = SearchConfig()
    harnesses: HarnessesConfig = HarnessesConfig()
    defaults: Defaults = Defaults()
    usd_to_eur: Annotated[Decimal, Field(gt=0)] = Decimal("0.92")
    tenants: Annotated[tuple[TenantConfig, ...], BeforeValidator(_replace_none)] = ()

    _warnings: tuple[ConfigProblem, ...] = PrivateAttr(())

    @property
    def warnings(self) -> tuple[ConfigProblem, ...]:
        """Return the lines of the file that work but should change."""
        return self._warnings

    def with_warnings(self, warnings: tuple[ConfigProblem, ...]) -> Self:
        self._warnings = warnings
        return self

    def bound_of(self, tenant: TenantId, name: BoundName) -> int:
        """Return a bound of the tenant: its own, or that of all tenants."""
        own: int | None = getattr(self._limits.get(tenant), name, None)
        common: int = getattr(self.limits, name)
        return common if own is None else own

    def trusts_traces(self, tenant: TenantId) -> bool:
        """Return whether the traces of the tenant's clients are continued."""
        return any(one.trusted_traces for one in self.tenants if one.id == tenant)

    @cached_property
    def _limits(self) -> dict[str, TenantLimits]:
        return {tenant.id: tenant.limits for tenant in self.tenants}

    @cached_property
    def _catalogue(self) -> dict[str, ModelConfig]:
        return {model.name: model for model in self.models}

    def has_model(self, name: str) -> bool:
        return name in self._catalogue

    def model(self, name: str) -> ModelConfig:
        """Return the catalogue's entry for ``name``, or raise ``ModelNotFound``."""
        try:
            return self._catalogue[name]
        except KeyError:
            if name.startswith(AGENT_MODEL_PREFIX):
                raise ModelNotFound(
                    f"'{name[:128]}' names an agent, and this call needs a model. Send a name that does not begin with agent/.",
                    param="model",
                ) from None
            raise model_not_found(name) from None


def model_not_found(name: str, *, names_agent: bool = False) -> ModelNotFound:
    """Return the error for ``name``, which is not a model. ``names_agent``: an agent has this name."""
    shown = name[:128]
    hint = f"The agent '{shown}' is called {AGENT_MODEL_PREFIX}{shown}. " if names_agent else ""
    return ModelNotFound(f"There is no model '{shown}'. {hint}GET /v1/models lists all models.", param="model")
