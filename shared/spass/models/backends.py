"""Find the models and the key variable of a configured backend, and check its configuration."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from spass.core.text_checks import suggest_name
from spass.models.provider_registry import DEFAULT_PROVIDER, PROVIDERS
from spass.tenancy.config import BackendConfig, GatewayConfig, LlmConfig
from spass.tenancy.config_file import BackendProblem

DEFAULT_MAX_CONNECTIONS: Final = 100
"""The maximum number of connections of a process to a backend without ``max_concurrent``."""

STANDIN: Final = "stand-in"
"""The backend that ``make run`` adds for the chat models that no other backend serves: an offline program."""

_BEDROCK_REGION: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.")


def provider_of_model(model: str) -> str | None:
    """Return the name of the provider whose prefix the name of ``model`` has, or None."""
    return next((name for name, provider in PROVIDERS.items() if model.startswith(provider.model_prefixes)), None)


def serves(backend: BackendConfig, model: str) -> bool:
    """Return True if ``backend`` serves ``model``.

    Every backend serves the models in its ``model_names``. A backend with ``supported_models`` also serves those. A backend
    without them serves the models whose names belong to its provider; other names belong to ``DEFAULT_PROVIDER``.
    """
    if model in backend.model_names:
        return True
    if backend.supported_models:
        return model in backend.supported_models
    return (provider_of_model(model) or DEFAULT_PROVIDER) == backend.provider


def is_served(config: LlmConfig, model: str) -> bool:
    """Return True if a backend serves ``model``. Its key may be missing: only a call reads keys."""
    return any(serves(backend, model) for backend in config.backends)


def has_standin(config: LlmConfig, model: str) -> bool:
    """Return True if the offline stand-in answers in place of ``model``."""
    return any(backend.name == STANDIN and serves(backend, model) for backend in config.backends)


def key_variable(backend: BackendConfig) -> str | None:
    """Return the environment variable that holds the key of ``backend``, or None if it needs no key."""
    if backend.api_key_env or backend.base_url:
        return backend.api_key_env
    return PROVIDERS[backend.provider].key_variable


def key_variables(backends: Iterable[BackendConfig]) -> list[str]:
    return list(dict.fromkeys(filter(None, map(key_variable, backends))))


def all_key_variables(config: GatewayConfig) -> list[str]:
    """Return the variables with the keys of all backends and of the search provider, without duplicates."""
    return list(dict.fromkeys([*key_variables(config.llm.backends), *filter(None, [config.search.key_variable])]))


def bedrock_region(base_url: str | None) -> str | None:
    """Return the AWS region in a Bedrock address, or None if the address has no region."""
    match = _BEDROCK_REGION.search(base_url or "")
    return match[1] if match else None


def check_backend(backend: BackendConfig) -> Iterator[BackendProblem]:
    """Yield the problems of ``backend``, for ``load_gateway_config``."""
    provider = PROVIDERS.get(backend.provider)
    if provider is None:
        names = list(PROVIDERS)
        yield BackendProblem("provider", f"must be one of {', '.join(map(repr, names))}{suggest_name(backend.provider, names)}")
        return
    if not (backend.supported_models or backend.model_names or provider.model_prefixes or backend.provider == DEFAULT_PROVIDER):
        instead = "list its models under model_names or supported_models"
        yield BackendProblem(
            None, f"{backend.name} serves no model: no name belongs to {backend.provider}; {instead}", is_warning=True
        )
    if backend.provider == "bedrock" and not backend.api_key_env and backend.base_url and not bedrock_region(backend.base_url):
        instead = "write https://bedrock-runtime.<region>.amazonaws.com"
        message = f"{backend.name}'s base_url names no region, so its calls are signed for that of the deployment; {instead}"
        yield BackendProblem("base_url", message, is_warning=True)
