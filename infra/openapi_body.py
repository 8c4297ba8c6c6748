"""The OpenAPI body of the REST API: the function of each method, and every answer that API Gateway gives without a function.

One import of the body replaces the whole content of the API. This module imports nothing of the CDK, so that the tests of the
laptop can compare the body with what the laptop answers.
(https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-swagger-extensions.html)
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from infra.routes import BINARY_MEDIA_TYPES, MIN_COMPRESSED_BYTES, NO_SUCH_ROUTE, ROUTE_HINTS, Route

JsonObject: TypeAlias = dict[str, object]

# A security policy needs an access mode. The strict one also refuses a request whose Host is not
# that of its TLS connection.
ENDPOINT_ACCESS_MODE: Final = "STRICT"

SHORT_MILLISECONDS: Final = 29_000
LONG_MILLISECONDS: Final = 900_000

_REQUEST_ID: Final = "SPASS-Request-Id"
_PREFLIGHT_SECONDS: Final = 7200
_EVERY_OTHER_PATH: Final = "/{path+}"

_MESSAGES: Final = {
    "invalid_request": "The request could not be understood.",
    "route_not_found": NO_SUCH_ROUTE,
    "method_not_allowed": "This route does not answer to this method.",
    "payload_too_large": "The request body is too large.",
    "rate_limited": "Too many requests at once; try again shortly.",
    "upstream_error": "The gateway could not answer; try again.",
    "upstream_timeout": "The answer took too long.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error that API Gateway answers without a function, in the gateway's error envelope.

    ``kind`` is API Gateway's type of the response. ``retry_after`` is in seconds.
    """

    kind: str
    status: int
    code: str
    retry_after: int | None = None


_ROUTE_NOT_FOUND: Final = (
    # API Gateway answers an unknown path with the first type. If such a request has an Authorization header, API Gateway reads it
    # as an invalid AWS signature and answers with the second or third. No route here uses AWS signatures, so all mean 404.
    "MISSING_AUTHENTICATION_TOKEN",
    "INVALID_SIGNATURE",
    "EXPIRED_TOKEN",
    "RESOURCE_NOT_FOUND",
    # Only the mock integrations of unknown paths and methods check the media type.
    "UNSUPPORTED_MEDIA_TYPE",
)
REFUSALS: Final = (
    *(Refusal(kind=kind, status=404, code="route_not_found") for kind in _ROUTE_NOT_FOUND),
    Refusal(kind="REQUEST_TOO_LARGE", status=413, code="payload_too_large"),
    Refusal(kind="THROTTLED", status=429, code="rate_limited", retry_after=1),
    Refusal(kind="QUOTA_EXCEEDED", status=429, code="rate_limited", retry_after=60),
    # Only the web ACL's limits of requests block; what AWS's rules find, they count (constructs/web_acl.py).
    Refusal(kind="WAF_FILTERED", status=429, code="rate_limited", retry_after=60),
    Refusal(kind="INTEGRATION_TIMEOUT", status=504, code="upstream_timeout"),
    Refusal(kind="INTEGRATION_FAILURE", status=502, code="upstream_error"),
    Refusal(kind="DEFAULT_5XX", status=502, code="upstream_error"),
    Refusal(kind="DEFAULT_4XX", status=400, code="invalid_request"),
)


def openapi_body(
    *,
    title: str,
    description: str,
    routes: Iterable[Route],
    uri: Callable[[Route], str],
    tls: str,
    origins: Sequence[str] = (),
    disable_endpoint: bool = False,
) -> JsonObject:
    """Return the body of the API with these rows.

    ``uri`` returns the address at which API Gateway invokes the function of a row. ``origins`` are the exact origins whose pages
    may read answers of the API, e.g. ``https://app.example.com``. ``tls`` is a security policy. ``disable_endpoint``: only a
    domain name leads to the API.
    """
    return {
        "openapi": "3.0.1",
        "info": {"title": title, "description": description, "version": "1"},
        "paths": _paths(routes, uri, origins),
        "x-amazon-apigateway-binary-media-types": list(BINARY_MEDIA_TYPES),
        "x-amazon-apigateway-minimum-compression-size": MIN_COMPRESSED_BYTES,
        "x-amazon-apigateway-endpoint-configuration": {"disableExecuteApiEndpoint": disable_endpoint},
        "x-amazon-apigateway-security-policy": tls,
        "x-amazon-apigateway-endpoint-access-mode": ENDPOINT_ACCESS_MODE,
        "x-amazon-apigateway-gateway-responses": {refusal.kind: _gateway_response(refusal, origins) for refusal in REFUSALS},
    }


def _paths(routes: Iterable[Route], uri: Callable[[Route], str], origins: Sequence[str]) -> JsonObject:
    """Return the methods of each path. A path without a row is one of another API, a parent of a longer path, or any other."""
    rows = list(routes)
    named = {*(route.resource for route in rows), *ROUTE_HINTS, _EVERY_OTHER_PATH}
    parents = {path[:end] or "/" for path in named for end, letter in enumerate(path) if letter == "/"}
    return {path: _path(path, _rows_of(path, rows), uri, origins) for path in sorted(named | parents)}


def _rows_of(path: str, routes: Sequence[Route]) -> list[Route]:
    """Return the rows of a path, and those of a variable in its place that have other methods.

    API Gateway chooses a fixed segment before it looks at the method, and a document may have the id ``append``.
    """
    own = [route for route in routes if route.resource == path]
    taken = {method for route in own for method in route.methods}
    return own + [route for route in routes if not taken & {*route.methods} and _matches(route.resource, path)]


def _matches(pattern: str, path: str) -> bool:
    """Return True if the variables of ``pattern`` can have values with which it is ``path``."""
    expected, given = pattern.split("/"), path.split("/")
    if pattern.endswith("+}"):
        given = given[: len(expected)]
    return len(expected) == len(given) and all(
        one == other or (one.startswith("{") and not other.startswith("{")) for one, other in zip(expected, given, strict=True)
    )


def _path(path: str, rows: Sequence[Route], uri: Callable[[Route], str], origins: Sequence[str]) -> JsonObject:
    """Return the methods of a path and what it answers to every other method."""
    methods: JsonObject = {method.lower(): _operation(route, uri(route)) for route in rows for method in route.methods}
    allow = sorted(method for route in rows for method in route.methods)
    if variables := [segment.strip("{}+") for segment in path.split("/") if segment.startswith("{")]:
        methods["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in variables
        ]
    if origins:
        methods["options"] = _preflight(allow, origins)
    if rows:
        message = f"{_MESSAGES['method_not_allowed']} It answers to {', '.join(allow)}."
        refusal = _refusal(405, envelope(405, "method_not_allowed", message), {"Allow": ", ".join(allow)}, origins)
    else:
        refusal = _refusal(404, envelope(404, "route_not_found", ROUTE_HINTS.get(path)), {}, origins)
    return {**methods, "x-amazon-apigateway-any-method": refusal}


def _operation(route: Route, uri: str) -> JsonObject:
    return {
        "responses": {"200": {"description": "Answered by the function."}},
        "x-amazon-apigateway-integration": {
            "type": "aws_proxy",
            "httpMethod": "POST",
            "uri": uri,
            "timeoutInMillis": LONG_MILLISECONDS if route.long else SHORT_MILLISECONDS,
            "responseTransferMode": "STREAM" if route.long else "BUFFERED",
        },
    }


def _refusal(status: int, answer: str, headers: Mapping[str, str], origins: Sequence[str]) -> JsonObject:
    """Return a method that answers this error to every request."""
    values = {_REQUEST_ID: "context.requestId", **{name: f"'{value}'" for name, value in headers.items()}}
    return _mock(status, answer, values | _any_origin(origins))


def _preflight(allow: Sequence[str], origins: Sequence[str]) -> JsonObject:
    """Return the answer to a browser that asks what a page of another origin may send. ``allow`` are the path's methods.

    Every origin gets these headers, but a browser ignores them without ``Access-Control-Allow-Origin``.
    """
    headers = {
        "Access-Control-Allow-Methods": ", ".join(allow),
        "Access-Control-Allow-Headers": "*, Authorization",
        "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
    }
    return _mock(204, _allow_origin(origins), {name: f"'{value}'" for name, value in headers.items()})


def _mock(status: int, answer: str, headers: Mapping[str, str]) -> JsonObject:
    """Return a method that invokes no function. ``answer`` is a mapping template, and ``headers`` are mapping expressions."""
    return {
        "responses": {
            str(status): {
                "description": "Answered without a function.",
                "headers": {name: {"schema": {"type": "string"}} for name in headers},
            }
        },
        "x-amazon-apigateway-integration": {
            "type": "mock",
            "requestTemplates": {"application/json": json.dumps({"statusCode": status})},
            # Reject every other media type: with passthrough, a mock would use the body as its template and fail.
            "passthroughBehavior": "never",
            "responses": {
                "default": {
                    "statusCode": str(status),
                    # Without this, API Gateway decodes the text as base64 and fails if the client accepts a binary media type
                    # first.
                    "contentHandling": "CONVERT_TO_TEXT",
                    "responseParameters": {f"method.response.header.{name}": value for name, value in headers.items()},
                    "responseTemplates": {"application/json": answer},
                }
            },
        },
    }


def _allow_origin(origins: Sequence[str]) -> str:
    """Return a mapping template that names the request's origin in the answer if it is one of ``origins``.

    The names of headers are those that the client sent: HTTP/2 has them in lower case.
    """
    listed = ",".join(f"'{origin}'" for origin in origins)
    header = "$context.responseOverride.header"
    return (
        f"#set($origins=[{listed}])#set($sent=$input.params().header)"
        "#set($origin=$sent.get('origin'))#if(!$origin)#set($origin=$sent.get('Origin'))#end"
        f"#if($origins.contains($origin))#set({header}.Access-Control-Allow-Origin=$origin)#set({header}.Vary='Origin')#end"
    )


def _any_origin(origins: Sequence[str]) -> dict[str, str]:
    """Return the header by which pages of any origin may read API Gateway's own refusals, if there are ``origins``.

    Most of these answers cannot be compared with a list. They hold no data, and never allow credentials.
    """
    return {"Access-Control-Allow-Origin": "'*'"} if origins else {}


def _gateway_response(refusal: Refusal, origins: Sequence[str]) -> JsonObject:
    headers = {_REQUEST_ID: "context.requestId", "Content-Type": "'application/json'"}
    if refusal.retry_after is not None:
        headers["Retry-After"] = f"'{refusal.retry_after}'"
    headers |= _any_origin(origins)
    return {
        "statusCode": str(refusal.status),
        "responseParameters": {f"gatewayresponse.header.{name}": value for name, value in headers.items()},
        "responseTemplates": {"application/json": envelope(refusal.status, refusal.code)},
    }


def envelope(status: int, code: str, message: str | None = None) -> str:
    """Return the body of an error as a mapping template, in which API Gateway puts the request's id."""
    kinds = {404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: JsonObject = {
        "code": code,
        "message": message or _MESSAGES[code],
        "type": kind,
        "param": None,
        "details": {},
    }
    # The same bytes as those of the gateway's own errors.
    return json.dumps({"error": error, "request_id": "$context.requestId"}, separators=(",", ":"))
