"""Types of the single values in ``gateway.yaml``, with the messages for wrong ones."""

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from spass.core.ids import AGENT_MODEL_PREFIX, TENANT_ID

ANY_MODEL: Final = "*"
"""The entry of a token's ``allowed_models`` that allows every model."""


def _match(pattern: str, message: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(message)  # without the value, which may be a pasted key
        return value

    return AfterValidator(check)


def _check_sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        if re.match(r"[0-9a-fA-F]{64}\s", value):
            raise ValueError("must be only the 64 hexadecimal digits; remove what shasum prints after them")
        raise ValueError('must be 64 hexadecimal digits: printf %s "$TOKEN" | shasum -a 256')
    return value.lower()


def _check_base_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s@/?#]+(/[^\s?#]*)?", value) or not _has_host(value):
        raise ValueError("must be a URL such as https://api.openai.com/v1, without credentials or a query")
    return value.rstrip("/")


def _check_folder(value: object) -> Path:
    folder = Path(value) if isinstance(value, str) and "\0" not in value else None
    if folder is None or not folder.is_absolute():
        raise ValueError("must be the absolute path of a folder, such as /home/me/projects")
    return folder


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # brackets that are no IPv6 address, or a port that is no number up to 65535
        return False


def _check_day(value: object) -> object:
    if isinstance(value, date):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise ValueError("must be a day such as 2026-04-30")
    return value


def _check_model_name(value: str) -> str:
    if value.startswith(AGENT_MODEL_PREFIX):
        raise ValueError(
            f"must not begin with {AGENT_MODEL_PREFIX}: such a name is that of an agent; write another name, and map it to the "
            "provider's name in model_names of its backend"
        )
    return value


Name = Annotated[str, Field(min_length=1, max_length=128)]
CatalogueName = Annotated[Name, AfterValidator(_check_model_name)]
EnvironmentVariable = Annotated[
    str,
    _match(r"[A-Z_][A-Z0-9_]*", "must be the name of an environment variable such as OPENAI_API_KEY, not the key itself"),
]
Sha256 = Annotated[str, AfterValidator(_check_sha256)]
AbsoluteFolder = Annotated[Path, BeforeValidator(_check_folder)]
BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
TenantName = Annotated[str, _match(TENANT_ID, "must be 1 to 63 characters of a-z, 0-9 and -, and must not begin with -")]
Positive = Annotated[int, Field(gt=0, le=10**12, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
Bound = Annotated[int, Field(ge=1, le=1000, strict=True)]
"""What a tenant may have in progress at the same time. One item of the table has the names of all of it."""
StoredBound = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=900, allow_inf_nan=False)]
Day = Annotated[date, BeforeValidator(_check_day), Field(ge=date(1970, 1, 1))]
Price = Annotated[Decimal, Field(ge=0)]
Money = Annotated[Decimal, Field(ge=0, le=10**9, max_digits=30)]
CompactStrategy: TypeAlias = Literal["auto", "manual", "off"]
KeepLastN = Annotated[int, Field(ge=0, le=200)]
"""Messages that a compaction keeps verbatim."""
TopK = Annotated[int, Field(ge=1, le=50)]
"""Passages that a search returns at most."""
