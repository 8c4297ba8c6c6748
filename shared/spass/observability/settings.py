"""The settings of the exporter of spans: OpenTelemetry's own variables, and three of a deployment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote, urlsplit

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""The URL to which spans are sent, for example ``http://localhost:4318/v1/traces``. Without it nothing is traced."""
_HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_SAMPLE: Final = "OTEL_TRACES_SAMPLER_ARG"
_PARAMETER: Final = "SPASS_TRACES_HEADERS_PARAMETER"
_SIGN: Final = "SPASS_TRACES_SIGN"
_SERVICE: Final = "spass"

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_URL: Final = re.compile(r"[\x21-\x7e]+")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class TracesMisconfigured(ValueError):
    """Raised for a variable of the exporter that cannot be used. The message names it, and never shows a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSettings:
    """``sample`` is the part of all traces that is sent, from 0 to 1. ``headers`` are sent with each request, and those of the
    SSM parameter ``headers_parameter`` too. ``sign_for`` is the region of X-Ray for which requests are signed, or None.
    ``resource`` are the attributes of the process."""

    endpoint: str
    sample: float = 1.0
    headers: Mapping[str, str]
    headers_parameter: str | None = None
    sign_for: str | None = None
    resource: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Read the settings, or return None if there is no endpoint.

        Raises:
            TracesMisconfigured: a variable has a value that cannot be used.
        """
        endpoint = environment.get(ENDPOINT)
        if not endpoint:
            return None
        host = _host(endpoint)
        function, region = environment.get("AWS_LAMBDA_FUNCTION_NAME"), environment.get("AWS_REGION")
        in_cloud = {"cloud.provider": "aws", "cloud.region": region or "", "faas.name": function} if function else {}
        return cls(
            endpoint=endpoint,
            sample=_sample(environment.get(_SAMPLE) or "1"),
            headers=read_pairs(_HEADERS, environment.get(_HEADERS) or ""),
            headers_parameter=environment.get(_PARAMETER) or None,
            sign_for=host.split(".")[1] if environment.get(_SIGN) == "xray" else None,
            resource={"service.name": _SERVICE, **in_cloud, **read_pairs(_RESOURCE, environment.get(_RESOURCE) or "")},
        )


def read_pairs(variable: str, text: str) -> dict[str, str]:
    """Read ``name=value,name=value``, where values are percent-encoded (https://opentelemetry.io/docs/specs/otel/protocol/exporter).

    Raises:
        TracesMisconfigured: ``text`` has another form. The message names ``variable``.
    """
    pairs: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise TracesMisconfigured(f"{variable} must be name=value,name=value, in ASCII and percent-encoded.")
        pairs[name] = value
    return pairs


def _host(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or not _URL.fullmatch(endpoint):
        raise TracesMisconfigured(
            f"{ENDPOINT} must be a URL such as http://localhost:4318/v1/traces, without a user or a password."
        )
    return parts.hostname


def _sample(text: str) -> float:
    try:
        sample = float(text)
    except ValueError:
        sample = -1.0
    if not 0 <= sample <= 1:
        raise TracesMisconfigured(f"{_SAMPLE} must be a number from 0 to 1, the part of all traces that is sent. It is {text!r}.")
    return sample
