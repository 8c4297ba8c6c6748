"""Load ``gateway.yaml``, and check what its schema cannot: names that must exist or be unique, and lines that should change."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from spass.core.ids import AGENT_MODEL_PREFIX
from spass.core.text_checks import did_you_mean
from spass.tenancy.config import BackendConfig, GatewayConfig, ModelConfig, TenantDefaults, TenantLimits
from spass.tenancy.config_problem import ConfigProblem, display_path
from spass.tenancy.scalars import ANY_MODEL
from spass.tenancy.yaml_source import ConfigError, Loc, YamlSource, load_yaml, validate


class BackendProblem(NamedTuple):
    """A problem of a backend, and what to write instead. ``key`` is None if the whole backend is wrong. A warning does not stop
    the start of the gateway."""

    key: str | None
    message: str
    is_warning: bool = False


BackendCheck: TypeAlias = Callable[[BackendConfig], Iterable[BackendProblem]]


def load_gateway_config(
    path: Path, tool_names: Collection[str] | None = None, check_backend: BackendCheck | None = None
) -> GatewayConfig:
    """Return the configuration in the file at ``path``, or raise ``ConfigError`` with its problems, their lines, and what to
    write instead. ``tool_names`` are the tools that it may name, and ``check_backend`` yields the problems of a backend. None:
    do not check."""
    if not path.exists():
        message = "there is no such file; name the operator's file in SPASS_CONFIG"
        raise ConfigError([ConfigProblem(display_path(path), None, message)])
    source = load_yaml(path)
    config = validate(source, GatewayConfig)
    problems = [*_find_problems(source, config, tool_names, check_backend)]
    if problems:
        raise ConfigError(problems)
    warnings = sorted(_find_warnings(source, config, check_backend), key=lambda warning: warning.line or 0)
    return config.with_warnings(tuple(warnings))


def _find_problems(
    source: YamlSource, config: GatewayConfig, tool_names: Collection[str] | None, check_backend: BackendCheck | None
) -> Iterator[ConfigProblem]:
    """Yield the problems that stop the gateway's start."""
    for at, problem in _check_backends(config, check_backend):
        if not problem.is_warning:
            yield source.problem(at, problem.message)
    yield from _check_search(source, config)
    yield from _check_references(source, config)
    yield from _check_uniqueness(source, config)
    yield from _check_ceilings(source, config)
    for at, defaults in _iterate_defaults(config):
        for loc, message in find_unknown_names(defaults, config, tool_names):
            yield source.problem((*at, *loc), message)


def _find_warnings(source: YamlSource, config: GatewayConfig, check_backend: BackendCheck | None) -> Iterator[ConfigProblem]:
    """Yield the lines that work but should change."""
    for at, problem in _check_backends(config, check_backend):
        if problem.is_warning:
            yield ConfigProblem(source.file, source.line_of(at), problem.message)
    if any(limits.monthly_budget_usd is not None for limits in _iterate_limits(config)):
        for number, model in enumerate(config.models):
            if _is_unpriced(model):
                message = f"{model.name} has no price. Its calls count for no budget, unless its provider reports their cost"
                yield ConfigProblem(source.file, source.line_of(("models", number)), message)


def _check_backends(config: GatewayConfig, check_backend: BackendCheck | None) -> Iterator[tuple[Loc, BackendProblem]]:
    for number, backend in enumerate(config.llm.backends):
        at: Loc = ("llm", "backends", number)
        if (
            backend.api_key_env
            and backend.base_url
            and backend.base_url.startswith("http://")
            and not _is_loopback(backend.base_url)
        ):
            message = f"{backend.name}'s key goes over the network in the clear; write https"
            yield (*at, "base_url"), BackendProblem("base_url", message, is_warning=True)
        for problem in check_backend(backend) if check_backend else ():
            yield (at if problem.key is None else (*at, problem.key)), problem


def _check_search(source: YamlSource, config: GatewayConfig) -> Iterator[ConfigProblem]:
    search = config.search
    if search.provider is None and (search.base_url or search.api_key_env):
        yield source.problem(("search",), "the key 'provider' is missing; write searxng or tavily")
    if search.provider == "searxng" and search.base_url is None:
        message = "the key 'base_url' is missing; searxng is a server of your own, such as https://searxng.example.com"
        yield source.problem(("search",), message)
    if search.base_url and search.base_url.startswith("http://") and not _is_loopback(search.base_url):
        message = "must begin with https, because the searches leave this machine; only a server on this machine may use http"
        yield source.problem(("search", "base_url"), message)


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _is_unpriced(model: ModelConfig) -> bool:
    return model.usd_per_mtok_in is None or (model.kind == "chat" and model.usd_per_mtok_out is None)


def _check_references(source: YamlSource, config: GatewayConfig) -> Iterator[ConfigProblem]:
    """Yield names that are missing in the catalogue, and models whose ``dimensions`` do not fit their kind."""
    for position, model in enumerate(config.models):
        if (model.kind == "embedding") != (model.dimensions is not None):
            yield source.problem(
                ("models", position),
                "the key 'dimensions' is missing; an embedding model needs it"
                if model.kind == "embedding"
                else "'dimensions' belongs to embedding models; write kind: embedding or remove it",
            )
    default = config.defaults.embedding_model
    embedding, chat = _list_models(config, "embedding"), _list_models(config, "chat")
    yield from _check_name(source, ("defaults", "embedding_model"), default, embedding, "an embedding model")
    for number, backend in enumerate(config.llm.backends):
        at: Loc = ("llm", "backends", number)
        for position, name in enumerate(backend.supported_models):
            yield from _check_name(source, (*at, "supported_models", position), name, [*chat, *embedding], "a model")
        for name in backend.model_names:
            yield from _check_name(source, (*at, "model_names", name), name, [*chat, *embedding], "a model")
    for number, tenant in enumerate(config.tenants):
        for token_number, token in enumerate(tenant.tokens):
            for position, name in enumerate(token.allowed_models):
                where: Loc = ("tenants", number, "tokens", token_number, "allowed_models", position)
                if name.startswith(AGENT_MODEL_PREFIX):
                    yield source.problem(where, f"'{name}' is an agent; write the name of the agent's model instead")
                else:
                    yield from _check_name(source, where, name, [ANY_MODEL, *chat, *embedding], "a model")


def _iterate_defaults(config: GatewayConfig) -> Iterator[tuple[Loc, TenantDefaults]]:
    """Yield the defaults of the gateway and of each tenant, with their paths in the file."""
    yield ("defaults",), config.defaults
    for number, tenant in enumerate(config.tenants):
        yield ("tenants", number, "defaults"), tenant.defaults


def _iterate_limits(config: GatewayConfig) -> Iterator[TenantDefaults | TenantLimits]:
    yield from (defaults for _, defaults in _iterate_defaults(config))
    yield from (tenant.limits for tenant in config.tenants)


def _check_ceilings(source: YamlSource, config: GatewayConfig) -> Iterator[ConfigProblem]:
    """Yield the tenants' own defaults that are above their ceilings."""
    for number, tenant in enumerate(config.tenants):
        for key, ceiling in tenant.limits.ceilings.items():
            value = getattr(tenant.defaults, key)
            if value is not None and value > ceiling:
                message = f"{value} is above the tenant's limit of {ceiling}; write at most {ceiling}, or raise limits.{key}"
                yield source.problem(("tenants", number, "defaults", key), message)


def find_unknown_names(
    defaults: TenantDefaults, config: GatewayConfig, tool_names: Collection[str] | None
) -> Iterator[tuple[Loc, str]]:
    """Yield the path and a message for each unknown name in ``defaults``. ``tool_names`` None: do not check tools."""
    model, chat = defaults.compact_summary_model, _list_models(config, "chat")
    if model is not None and model not in chat:
        yield ("compact_summary_model",), _describe_unknown(model, chat, "a chat model of the catalogue")
    if tool_names is not None:
        for position, name in enumerate(defaults.tools_enabled_default):
            if name not in tool_names:
                advice = did_you_mean(name, sorted(tool_names))
                yield ("tools_enabled_default", position), f"'{name}' is not a tool of this gateway{advice}"


def _list_models(config: GatewayConfig, kind: str) -> list[str]:
    return [model.name for model in config.models if model.kind == kind]


def _check_name(source: YamlSource, loc: Loc, name: str, known: Sequence[str], what: str) -> Iterator[ConfigProblem]:
    if name not in known:
        yield source.problem(loc, _describe_unknown(name, known, f"{what} of the catalogue under models"))


def _describe_unknown(name: str, known: Sequence[str], what: str) -> str:
    return f"'{name}' is not {what}{did_you_mean(name, known)}"


def _check_uniqueness(source: YamlSource, config: GatewayConfig) -> Iterator[ConfigProblem]:
    yield from _find_duplicates(source, ("llm", "backends"), "name", (backend.name for backend in config.llm.backends))
    yield from _find_duplicates(source, ("models",), "name", (model.name for model in config.models))
    yield from _find_duplicates(source, ("tenants",), "id", (tenant.id for tenant in config.tenants))
    owners: dict[str, str] = {}
    for number, tenant in enumerate(config.tenants):
        at: Loc = ("tenants", number, "tokens")
        yield from _find_duplicates(source, at, "id", (token.id for token in tenant.tokens))
        for position, token in enumerate(tenant.tokens):
            if token.sha256 in owners:
                message = f"this is also the token {owners[token.sha256]}; each needs its own"
                yield source.problem((*at, position, "sha256"), message)
            owners.setdefault(token.sha256, f"'{token.id}' of tenant '{tenant.id}'")


def _find_duplicates(source: YamlSource, loc: Loc, key: str, names: Iterable[str]) -> Iterator[ConfigProblem]:
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            yield source.problem((*loc, position, key), f"'{name}' occurs a second time; choose another {key}")
        seen.add(name)
