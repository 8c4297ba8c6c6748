"""The headers of the requests that send spans."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from spass.models.provider_keys import ProviderKeys, ReadParameters
from spass.observability.settings import TracesSettings, read_pairs


class ExporterHeaders:
    """The headers of the environment, and those of a parameter in SSM, which is read as provider keys are."""

    def __init__(self, settings: TracesSettings, read: ReadParameters) -> None:
        self._constant = settings.headers
        path, _, self._name = (settings.headers_parameter or "").rpartition("/")
        self._keys = ProviderKeys([self._name], f"{path}/", read) if self._name else None
        # Reading may block for 30 seconds. There is one thread for all requests, so that they cannot occupy more.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traces")

    def prepare(self) -> None:
        """Read the parameter while the process starts."""
        if self._keys is not None:
            self._keys.prefetch([self._name])

    async def read(self) -> Mapping[str, str]:
        """Return the headers.

        Raises:
            StorageUnavailable, InternalError: the parameter cannot be read.
            TracesMisconfigured: it has another form than ``name=value,name=value``.
        """
        if self._keys is None:
            return self._constant
        text = await asyncio.get_running_loop().run_in_executor(self._thread, self._keys.get, self._name)
        return {**self._constant, **read_pairs("The parameter with the headers", text or "")}
