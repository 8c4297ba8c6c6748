"""Refuse what must not reach the emulated AWS, which itself accepts every caller.

The front runs in the emulator's process, so that nothing but the front listens. It passes on:

- requests that are signed with the access key of this start, for the services and actions that the gateway uses and with its
  CloudFormation templates, and
- presigned forms, also those that a page of the gateway sends.
"""

import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from local.aws_actions import FORM_PATH, is_allowed
from local.presigned_forms import MAX_FIELDS_BYTES, VerifiedForm, boundary, cut_file, verify_form, write_form
from local.signatures import AccessKey, BadSignature, SignedRequest, declared_hash, read_authorization, verify

FRONT_VARIABLE: Final = "EMULATED_AWS_FRONT"
"""The variable of the emulator's process that holds the front's settings, in JSON."""
_MAX_BODY_BYTES: Final = 8 * 2**20  # of a request that does not declare the hash of its body
_JSON_SERVICES: Final = frozenset({"dynamodb", "sqs", "states", "lambda", "scheduler"})
_BROWSER_HEADERS: Final = frozenset({"origin", "sec-fetch-site", "sec-fetch-mode"})


class Disconnected(Exception):
    """The client has gone."""


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """The answer to a refused request."""

    status: int
    code: str
    message: str


class AwsFront:
    """ASGI middleware before the emulated AWS. ``hosts`` are the values of ``Host`` that it accepts. Pages of ``origins`` may
    send presigned forms. ``templates`` are the SHA-256 (hex) of the CloudFormation templates that it passes on."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: AccessKey,
        hosts: Collection[str],
        origins: Collection[str],
        region: str,
        templates: Collection[str],
    ) -> None:
        self._app = app
        self._key = key
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._region = region
        self._templates = frozenset(templates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            try:
                await self._pass_on(scope, receive, send)
            except Disconnected:
                return
            except BadSignature as error:
                await _refuse(scope, send, Refusal(403, "AccessDenied", str(error)))
            except Refusal as refusal:
                await _refuse(scope, send, refusal)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _signed_request(scope)
        if request.headers.get("host") not in self._hosts:
            raise Refusal(403, "AccessDenied", "The header Host does not name this server.")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise Refusal(403, "AccessDenied", "Pages of this origin may not call the emulated AWS.")
        if request.method == "OPTIONS":
            await _answer_preflight(request, send)
        elif "authorization" in request.headers:
            await self._pass_signed(request, scope, receive, send)
        else:
            await self._pass_form(request, scope, receive, send)

    async def _pass_signed(self, request: SignedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        if not _BROWSER_HEADERS.isdisjoint(request.headers):
            raise Refusal(403, "AccessDenied", "A page may send presigned forms only.")
        authorization = read_authorization(request, self._key)
        if authorization.region != self._region:
            raise Refusal(403, "AccessDenied", f"The emulated AWS has the region {self._region} only.")
        declared = declared_hash(request)
        if declared is None:
            body = await _read(receive, _MAX_BODY_BYTES)
            verify(request, authorization, hashlib.sha256(body).hexdigest(), self._key)
        else:
            verify(request, authorization, declared, self._key)
            body = await _read(receive)
            if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), declared):
                raise BadSignature("The body is not the one that was signed.")
        target = request.headers.get("x-amz-target")
        if not is_allowed(authorization.service, request.method, request.path, request.query, target, body, self._templates):
            raise Refusal(403, "AccessDenied", f"The gateway does not make this call of {authorization.service}.")
        await self._app(scope, _replay(body, receive), _without_cors(send))

    async def _pass_form(self, request: SignedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        if request.method != "POST" or request.query or not FORM_PATH.fullmatch(request.path):
            raise Refusal(403, "AccessDenied", "The request is not signed.")
        body, verified = await self._read_form(request, receive)
        cut_file(body, verified)
        if len(body) > verified.largest:
            raise _too_large(verified)
        if len(body) < verified.smallest:
            raise Refusal(400, "EntityTooSmall", f"The policy of the form allows files from {verified.smallest} bytes.")
        content_type, form = write_form(verified.fields, body)
        body.clear()
        headers = [
            (b"host", request.headers["host"].encode("latin-1")),
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(form)).encode()),
        ]
        answer = _without_cors(send, origin=request.headers.get("origin"))
        await self._app({**scope, "headers": headers}, _replay(form, receive), answer)

    async def _read_form(self, request: SignedRequest, receive: Receive) -> tuple[bytearray, VerifiedForm]:
        edge = boundary(request.headers.get("content-type", ""))
        body = bytearray()
        verified: VerifiedForm | None = None
        more = True
        while more:
            chunk, more = await _chunk(receive)
            body += chunk
            if verified is None and (len(body) >= MAX_FIELDS_BYTES or not more):
                verified = verify_form(bytes(body[:MAX_FIELDS_BYTES]), edge, request.path.strip("/"), self._key)
            if verified is not None and len(body) > verified.longest:
                raise _too_large(verified)
        assert verified is not None
        return body, verified


def _too_large(form: VerifiedForm) -> Refusal:
    return Refusal(400, "EntityTooLarge", f"The policy of the form allows files up to {form.largest} bytes.")


def _signed_request(scope: Scope) -> SignedRequest:
    headers: dict[str, str] = {}
    for name_bytes, value_bytes in scope["headers"]:
        name, value = name_bytes.decode("latin-1").lower(), value_bytes.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    path = bytes(scope["raw_path"]).partition(b"?")[0].decode("latin-1")
    return SignedRequest(scope["method"], path, bytes(scope["query_string"]).decode("latin-1"), headers)


async def _answer_preflight(request: SignedRequest, send: Send) -> None:
    origin = request.headers.get("origin")
    if origin is None or request.headers.get("access-control-request-method") != "POST" or not FORM_PATH.fullmatch(request.path):
        raise Refusal(403, "AccessDenied", "A page may send presigned forms only.")
    headers = [
        *_cors(origin),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", b"content-type"),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]


async def _chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of the body, and whether more follows."""
    message = await receive()
    if message["type"] != "http.request":
        raise Disconnected
    return message.get("body", b""), message.get("more_body", False)


async def _read(receive: Receive, limit: int | None = None) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        chunk, more = await _chunk(receive)
        chunks.append(chunk)
        size += len(chunk)
        if limit is not None and size > limit:
            raise Refusal(413, "RequestEntityTooLarge", f"The body is over {limit} bytes.")
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI ``receive`` that first returns ``body``, which was already read, and then the server's messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _without_cors(send: Send, *, origin: str | None = None) -> Send:
    """Return a ``send`` that lets pages of ``origin`` alone read the answer. The emulator would let all pages read it."""

    async def restrict(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message["headers"] if not name.lower().startswith(b"access-control-")]
            message = {**message, "headers": [*kept, *(_cors(origin) if origin else [])]}
        await send(message)

    return restrict


async def _refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Answer in the format of the service that the signature names, so that clients show the message."""
    authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    if any(f"/{service}/aws4_request" in authorization for service in _JSON_SERVICES):
        text = json.dumps({"__type": refusal.code, "message": refusal.message})
        kind = b"application/json"
    else:
        error = f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message></Error>"
        text = f"<ErrorResponse>{error}</ErrorResponse>"
        kind = b"application/xml"
    body = text.encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
