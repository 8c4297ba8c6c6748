"""Makes providers. A module is imported at the first use of a backend: no function pays for what it does not call."""

from importlib import import_module
from typing import cast

from spass.llm.provider_registry import PROVIDERS
from spass.llm.types import Provider
from spass.tenancy.config import BackendConfig


def make_provider(backend: BackendConfig, key: str | None) -> Provider:
    """The provider that speaks to ``backend`` with ``key``."""
    module, name = PROVIDERS[backend.provider].class_path.split(":")
    return cast(Provider, getattr(import_module(module), name)(backend, key))
