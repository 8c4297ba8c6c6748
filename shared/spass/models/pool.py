"""Create the provider of each backend at its first use, and keep it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from spass.core.errors import NoBackendAvailable, StorageUnavailable
from spass.models.backends import key_variable
from spass.models.types import CallContext, Provider
from spass.redaction.log import write_event
from spass.tenancy.config import BackendConfig

KeyOf: TypeAlias = Callable[[str], str | None]
"""Return the key in an environment variable, or None if it is not set. It may block."""
ProviderOf: TypeAlias = Callable[[BackendConfig, str | None], Provider]


class ProviderPool:
    def __init__(self, key_of: KeyOf, provider_of: ProviderOf) -> None:
        self._key_of = key_of
        self._provider_of = provider_of
        self._providers: dict[str, Provider] = {}
        self._keys: dict[str, str | None] = {}
        self._refused_keys: set[str] = set()  # backends that refused their key

    def __getitem__(self, backend: BackendConfig) -> Provider:
        return self._providers[backend.name]

    def keys(self) -> list[str]:
        return [key for key in self._keys.values() if key]

    def reread_key(self, backend: BackendConfig) -> None:
        """Read the key of ``backend`` again before the next attempt, because the backend refused it."""
        self._refused_keys.add(backend.name)

    async def available(self, model: str, serving: Sequence[BackendConfig], context: CallContext) -> list[BackendConfig]:
        """Return the backends in ``serving``, which serve ``model``, that have a key or need none.

        Raises:
            NoBackendAvailable: no backend has its key.
            StorageUnavailable: no backend has its key, and a key could not be read.
        """
        if not serving:
            raise NoBackendAvailable(
                f"No backend in service serves the model '{model[:128]}'. If gateway.yaml names one, its key may be missing.",
                param="model",
            )
        available: list[BackendConfig] = []
        unreadable: StorageUnavailable | None = None
        for backend in serving:
            try:
                if await self._is_available(backend):
                    available.append(backend)
            except StorageUnavailable as error:  # another backend may need no key
                unreadable = error
        if not available:
            raise unreadable or _missing_key_error(model, serving, context)
        return available

    async def aclose(self) -> None:
        for provider in self._providers.values():
            await provider.aclose()
        self._providers.clear()

    async def _is_available(self, backend: BackendConfig) -> bool:
        """Return False if the backend's key is not set. Otherwise create its provider if it has none or its key has changed."""
        name = backend.name
        if name in self._providers and name not in self._refused_keys:
            return True
        variable = key_variable(backend)
        key = await asyncio.to_thread(self._key_of, variable) if variable else None
        if variable and not key:
            return False
        self._refused_keys.discard(name)
        if name not in self._providers or self._keys[name] != key:
            self._providers[name], self._keys[name] = self._provider_of(backend, key), key
        return True


def _missing_key_error(model: str, serving: Iterable[BackendConfig], context: CallContext) -> NoBackendAvailable:
    """Return the error for a missing key, and log the names of the variables for the operator."""
    variables = sorted({variable for backend in serving if (variable := key_variable(backend))})
    write_event("key_missing", {"request_id": context.request_id, "model": model, "set": variables}, level="error")
    return NoBackendAvailable(
        f"No backend for the model '{model[:128]}' is configured with a key. The operator finds the name of the missing variable "
        "in the log.",
        param="model",
    )
