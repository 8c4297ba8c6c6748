"""Provider keys: from the environment, else from encrypted parameters that the operator has put beside the deployment."""

import os
import time
from typing import Final

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from spass.aws.translate import storage_errors

_KEEP_SECONDS: Final = 300
_cache: dict[str, tuple[float, str | None]] = {}


def provider_key(name: str) -> str | None:
    """The environment variable ``name``, else the SSM SecureString ``$SPASS_KEYS_PATH<name>`` (kept five minutes), else None.

    An empty value counts as none.

    Raises:
        StorageUnavailable: the parameter store did not answer.
    """
    value = os.environ.get(name)
    path = os.environ.get("SPASS_KEYS_PATH")
    if value or not path:
        return value or None
    until, cached = _cache.get(name, (0.0, None))
    if time.monotonic() < until:
        return cached
    found = _parameter(path + name)
    _cache[name] = (time.monotonic() + _KEEP_SECONDS, found)
    return found


def forget_keys() -> None:
    """Read every key again when it is next asked for."""
    _cache.clear()


def _parameter(name: str) -> str | None:
    client = boto3.client(
        "ssm", config=Config(connect_timeout=1, read_timeout=3, retries={"mode": "standard", "total_max_attempts": 4})
    )
    try:
        with storage_errors():
            return client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"] or None
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        return None
