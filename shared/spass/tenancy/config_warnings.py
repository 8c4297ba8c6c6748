"""What in ``gateway.yaml`` works, and yet should not stay so."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spass.tenancy.providers import DEFAULT_PROVIDER, PROVIDERS, bedrock_region
from spass.tenancy.yaml_source import ConfigProblem, Loc, YamlSource

if TYPE_CHECKING:
    from spass.tenancy.config import BackendConfig, GatewayConfig, ModelConfig


def find_warnings(source: YamlSource, config: "GatewayConfig") -> Iterator[ConfigProblem]:
    """Each with its line, and what to write instead."""
    for number, backend in enumerate(config.llm.backends):
        at: Loc = ("llm", "backends", number)
        for key, message in _of_backend(backend):
            yield ConfigProblem(source.file, source.line_of((*at, key) if key else at), f"{backend.name}{message}")
    if _has_budgets(config):
        for number, model in enumerate(config.models):
            if _is_unpriced(model):
                message = f"{model.name} has no price: its calls count for no budget, unless its provider says what they cost"
                yield ConfigProblem(source.file, source.line_of(("models", number)), message)


def _of_backend(backend: "BackendConfig") -> Iterator[tuple[str | None, str]]:
    """The key of the backend that it is about, and what is to be said."""
    if backend.api_key_env and backend.base_url and backend.base_url.startswith("http://") and not _is_here(backend.base_url):
        yield "base_url", "'s key goes over the network in the clear; write https"
    lists = backend.supported_models or backend.model_names
    if not lists and backend.provider != DEFAULT_PROVIDER and not PROVIDERS[backend.provider].models:
        yield (
            None,
            f" serves no model: no name belongs to {backend.provider}; list its models under model_names or supported_models",
        )
    if backend.provider == "bedrock" and not backend.api_key_env and backend.base_url and not bedrock_region(backend.base_url):
        instead = "write https://bedrock-runtime.<region>.amazonaws.com"
        yield "base_url", f"'s base_url names no region, so its calls are signed for that of the deployment; {instead}"


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _has_budgets(config: "GatewayConfig") -> bool:
    every = (config.defaults, *(tenant.defaults for tenant in config.tenants))
    return any(defaults.monthly_budget_usd is not None for defaults in every)


def _is_unpriced(model: "ModelConfig") -> bool:
    return model.usd_per_mtok_in is None or (model.kind == "chat" and model.usd_per_mtok_out is None)
