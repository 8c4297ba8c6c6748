"""Sign requests to AWS that are not sent by a boto3 client (Signature Version 4, by botocore)."""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import anyio.to_thread
import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError

_SIGNATURE_HEADERS: Final = frozenset({"authorization", "x-amz-date", "x-amz-security-token"})


class SigningFailed(Exception):
    """The profile, the credentials or the region is missing, or the credentials could not be renewed."""


class Signer:
    """Sign requests to one service with the process's credentials, which boto3 finds and renews."""

    def __init__(self, service: str, region: str | None = None) -> None:
        self._service = service
        self._region = region

    @cached_property
    def _session(self) -> boto3.Session:
        try:
            return boto3.Session()
        except BotoCoreError as error:
            raise SigningFailed("no such profile") from error

    @cached_property
    def _credentials(self) -> Credentials:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise SigningFailed("no credentials")
        return credentials

    @cached_property
    def region(self) -> str:
        """Return the region of the constructor, or else of the environment. Raise ``SigningFailed`` if no region is
        configured."""
        region = self._region or os.environ.get("AWS_REGION") or self._session.region_name
        if not region:
            raise SigningFailed("no region")
        return region

    async def sign(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers to add to a request. The path of ``url`` is percent-encoded once. ``headers`` are signed too, so a
        proxy must not change them. Raise ``SigningFailed`` if credentials or the region are missing, or credentials could not be
        renewed."""
        # Use a thread: credentials may have to be fetched, and hashing a body of megabytes takes milliseconds.
        return await anyio.to_thread.run_sync(self._sign, method, url, body, headers)

    def _sign(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
        try:
            credentials = self._credentials.get_frozen_credentials()
            # SigV4Auth encodes the path a second time, as every service except S3 requires.
            SigV4Auth(credentials, self._service, self.region).add_auth(request)
        except (BotoCoreError, ClientError, RuntimeError) as error:  # RuntimeError: the renewed credentials have expired too
            raise SigningFailed("no credentials") from error
        return {name: value for name, value in request.headers.items() if name.lower() in _SIGNATURE_HEADERS}
