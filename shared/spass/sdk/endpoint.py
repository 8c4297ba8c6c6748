"""Find the gateway's URL, the token and the user: in the arguments, in ``SPASS_*`` variables, or as ``make run`` has them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import httpx

DEFAULT_URL: Final = "http://127.0.0.1:3000"
_LOCAL_TOKEN: Final = "demo-token"  # noqa: S105 (public, and valid only on a laptop)
_LOCAL_USER: Final = "demo"
_MAX_PORT: Final = 65535
_HEADER_VALUE: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A gateway's URL without a final slash, and the credentials to send."""

    url: str
    token: str | None = field(repr=False)
    user: str | None
    is_loopback: bool

    @classmethod
    def resolve(cls, url: str | None, token: str | None, user: str | None, environment: Mapping[str, str]) -> "Endpoint":
        """Return the endpoint. An empty variable counts as missing. Raise ValueError if a value cannot be sent. The message does
        not contain the token."""
        url = (url or environment.get("SPASS_URL") or DEFAULT_URL).rstrip("/")
        is_loopback = _is_loopback(_host(url))
        token = token or environment.get("SPASS_TOKEN") or (_LOCAL_TOKEN if is_loopback else None)
        user = user or environment.get("SPASS_USER") or (_LOCAL_USER if is_loopback else None)
        for name, value in (("token", token), ("user", user)):
            if value is not None and not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"The {name} (SPASS_{name.upper()}) contains a blank or a character outside ASCII.")
        return cls(url, token, user, is_loopback)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        headers = {"User-Agent": "spass-client", "Accept-Encoding": "gzip"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.user:
            headers["SPASS-User-Id"] = self.user
        return headers


def _host(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        host = parsed.host
        parsed.raw_host.decode().encode("idna")  # a label of the name may be empty or too long to be looked up
    except (httpx.InvalidURL, UnicodeError):
        raise ValueError(_url_problem()) from None
    is_port = parsed.port is None or 0 < parsed.port <= _MAX_PORT
    if parsed.scheme not in ("http", "https") or not is_port or not host or parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError(_url_problem())
    return host


def _url_problem() -> str:
    # The value is not shown, because it may contain a password.
    return f"The URL (SPASS_URL) is not the address of a gateway. Write it like {DEFAULT_URL} or https://host/stage."


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
