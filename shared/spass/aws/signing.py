"""Requests to AWS that no boto3 client makes, signed as boto3 would (Signature Version 4, by botocore)."""

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

_OURS: Final = frozenset({"authorization", "x-amz-date", "x-amz-security-token"})


class SigningFailed(Exception):
    """There are no credentials or no such profile, they could not be renewed, or nothing says which region is meant."""


class Signer:
    """Signs requests to one service with this process's own credentials, which boto3 finds and renews."""

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
        found = self._session.get_credentials()
        if found is None:
            raise SigningFailed("no credentials")
        return found

    @cached_property
    def region(self) -> str:
        """The region given, else the environment's.

        Raises:
            SigningFailed: nothing names one.
        """
        region = self._region or os.environ.get("AWS_REGION") or self._session.region_name
        if not region:
            raise SigningFailed("no region")
        return region

    async def sign(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers to add to a request. ``url`` is as it is sent, its path percent-encoded once; ``headers`` are signed too,
        so nothing on the way may change them.

        Raises:
            SigningFailed: as above.
        """
        # Credentials may have to be fetched, and a body of megabytes takes milliseconds to hash.
        return await anyio.to_thread.run_sync(self._signed, method, url, body, headers)

    def _signed(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
        try:
            frozen = self._credentials.get_frozen_credentials()
            # Its canonical path is the path encoded once more, as every service but S3 wants it.
            SigV4Auth(frozen, self._service, self.region).add_auth(request)
        except (BotoCoreError, ClientError, RuntimeError) as error:  # the last: what was renewed has run out as well
            raise SigningFailed("no credentials") from error
        return {name: value for name, value in request.headers.items() if name.lower() in _OURS}
