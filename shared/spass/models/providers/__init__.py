"""Create providers. Import a provider's module at its first use, to keep cold starts short."""

from importlib import import_module
from typing import cast

from spass.models.provider_registry import PROVIDERS
from spass.models.types import Provider
from spass.tenancy.config import BackendConfig


def make_provider(backend: BackendConfig, key: str | None) -> Provider:
    """Return a provider that calls ``backend`` with ``key``."""
    module, name = PROVIDERS[backend.provider].class_path.split(":")
    return cast(Provider, getattr(import_module(module), name)(backend, key))
