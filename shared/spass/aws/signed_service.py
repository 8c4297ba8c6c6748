"""Send signed requests to one service of AWS, on the event loop."""

import os
from collections.abc import Mapping
from functools import cached_property
from urllib.parse import urlsplit

from spass.aws.connections import Endpoint
from spass.aws.http_connection import Answer, NoAnswer
from spass.aws.signing import KeySource, Signer
from spass.aws.upload_origin import domain_of
from spass.core.errors import InternalError


class SignedService:
    """The service ``name`` of the region, or of ``AWS_ENDPOINT_URL``.

    ``connect_seconds`` limits the start of a connection, ``silence_seconds`` the time without a byte of an answer.
    """

    def __init__(self, name: str, *, connect_seconds: float, silence_seconds: float) -> None:
        self._name = name
        self._connect_seconds = connect_seconds
        self._silence_seconds = silence_seconds
        # As boto3, which the other services use: it does not read AWS_REGION.
        self.signer = Signer(name, os.environ.get("AWS_DEFAULT_REGION"))

    async def post(
        self,
        body: bytes,
        headers: Mapping[str, str],
        *,
        keys: KeySource | None = None,
        on_new_connection: bool = False,
    ) -> Answer:
        """Sign and send one request, with the credentials of ``keys`` or else of this process. A connection that died while it
        was idle costs no attempt.

        Raises:
            NoAnswer: the connection failed, or the service did not send a complete answer in time.
            SigningFailed: there are no credentials, or no region.
        """
        endpoint = self._endpoint
        signature = await self.signer.sign("POST", endpoint.url, body, headers, keys)
        fields = {"host": endpoint.host_header, "content-length": str(len(body)), "user-agent": "spass", **headers, **signature}
        head = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        request = f"POST {endpoint.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
        try:
            return await endpoint.send(request, on_new_connection=on_new_connection)
        except NoAnswer as error:
            if not error.is_stale:
                raise
            return await endpoint.send(request, on_new_connection=True)

    def prepare(self) -> None:
        """Read the environment and the certificates now, instead of at the first request."""
        self.signer.prepare()
        self._endpoint.prepare()

    def close(self) -> None:
        """Close the idle connections of the running event loop, in its next iteration."""
        if "_endpoint" in self.__dict__:
            self._endpoint.close()

    @property
    def url(self) -> str:
        return self._endpoint.url

    @cached_property
    def _endpoint(self) -> Endpoint:
        url = _endpoint_url(self._name, self.signer.region)
        return Endpoint(url, connect_seconds=self._connect_seconds, silence_seconds=self._silence_seconds)


def _endpoint_url(service: str, region: str) -> str:
    """Return the URL of the environment, or that of the region.

    Raises:
        InternalError: the URL of the environment is not one.
    """
    name = f"AWS_ENDPOINT_URL_{service.upper()}"
    if not os.environ.get(name):
        name = "AWS_ENDPOINT_URL"
    configured = os.environ.get(name)
    if configured and os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        if not _is_http_url(configured):
            raise InternalError(f"{name} must be a URL that begins with http:// or https://.")
        return configured
    host = f"{service}-fips" if os.environ.get("AWS_USE_FIPS_ENDPOINT", "").lower() == "true" else service
    return f"https://{host}.{region}.{domain_of(region)}"


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or half of an IPv6 address
        return False
