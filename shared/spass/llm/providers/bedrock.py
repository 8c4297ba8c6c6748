"""Call Amazon Bedrock: Converse and ConverseStream for chat, InvokeModel for embeddings.

The backend's ``model_names`` must give Bedrock's name of each model: the id of a model or of an inference profile, or an ARN. The
region is in ``base_url`` or in the environment. Requests are signed with the credentials of this process, unless
``api_key_env`` is set: then the key is sent as a bearer token.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import quote

import httpx

from spass.aws.eventstream import BrokenEventStream, EventStreamDecoder, StreamMessage
from spass.aws.log import write_line
from spass.aws.signing import Signer, SigningFailed
from spass.core.messages import Json
from spass.core.time import now
from spass.llm.backends import bedrock_region
from spass.llm.errors import BackendAuthError, BackendError, BackendForbidden, BackendTimeout, BackendUnavailable
from spass.llm.providers.bedrock_embeddings import embed
from spass.llm.providers.bedrock_wire import (
    ConversePayload,
    EventPayload,
    ToolUsePayload,
    UsagePayload,
    converse_body,
    finish_reason,
)
from spass.llm.providers.error_responses import ErrorDetails, error_from_status, parse_error_body, retry_after
from spass.llm.providers.http import Connection, malformed_response
from spass.llm.providers.payloads import SurrogateJoiner, join_surrogates, parse
from spass.llm.providers.stream_fallback import stream_or_whole
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, ToolCallDelta
from spass.tenancy.config import BackendConfig

# Match whole messages, because a message about a bad value quotes that value.
_MODEL_ACCESS_MESSAGES: Final = re.compile(
    r"The provided model identifier is invalid\."
    r"|Could not resolve the foundation model from the provided model identifier\."
    r"|Invocation of model ID \S+ with on-demand throughput isn.t supported\. Retry \S.{0,60}\binference profile\b[\w ]{0,40}\."
    r"|This action doesn't support the model that you provided\. Try again with a supported text or chat model\."
)

# By exception name, in lower case and without the suffix "exception". For other exceptions the status decides.
_ERROR_TYPES: Final[dict[str, type[BackendError]]] = {
    "modeltimeout": BackendTimeout,
    "modelnotready": BackendUnavailable,
    "modelerror": BackendUnavailable,
    "modelstreamerror": BackendUnavailable,
    "servicequotaexceeded": BackendForbidden,
    "resourcenotfound": BackendForbidden,  # the operator configures the model's name, not the caller
}
_STATUSES: Final = {"validation": 400, "accessdenied": 403, "throttling": 429, "serviceunavailable": 503, "internalserver": 500}
_INTERRUPTED: Final = frozenset({"malformed_model_output", "malformed_tool_use"})


class Bedrock:
    """Call Bedrock in one region of AWS."""

    def __init__(self, backend: BackendConfig, key: str | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        signer = Signer("bedrock", bedrock_region(backend.base_url))
        self._backend = backend
        self._signer = signer
        self._transport = transport
        self._key = key
        self._opened: Connection | None = None

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        body = converse_body(request)
        if not request.stream:
            return self._complete(_path(request.model, "converse"), body, context)
        whole = partial(self.chat, replace(request, stream=False), context)
        return stream_or_whole(self._stream(_path(request.model, "converse-stream"), body, context), whole, context)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        return await embed(self._connection, _path(request.model, "invoke"), request, context)

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def _connection(self) -> Connection:
        """Return the connection. Create it at the first call: a missing region must fail calls, not the process."""
        if self._opened is None:
            auth = None if self._key else _SigV4Auth(self._backend, self._signer)
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._opened = Connection(
                self._backend,
                self._address(),
                headers,
                key=self._key,
                auth=auth,
                error_from_response=_failure_of,
                transport=self._transport,
            )
        return self._opened

    def _address(self) -> str:
        try:
            return self._backend.base_url or f"https://bedrock-runtime.{self._signer.region}.amazonaws.com"
        except SigningFailed as error:
            raise _signing_error(self._backend, error) from error

    async def _complete(self, path: str, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        payload = parse(ConversePayload, await self._connection.post(path, body, context, generates=True))
        _check_end(payload.stopReason)
        blocks = payload.output.message.content
        text = "".join(block.text for block in blocks)
        uses = [block.toolUse for block in blocks if block.toolUse is not None]
        calls = tuple(_tool_call_start(index, use, use.arguments) for index, use in enumerate(uses))
        yield ChatDelta(
            join_surrogates(text), calls, finish_reason(payload.stopReason), payload.usage.tokens if payload.usage else None
        )

    async def _stream(self, path: str, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        reader = _StreamReader(self._connection.secrets)
        messages = self._connection.stream(path, body, context, parser=_MessageParser(), is_last=_is_last)
        async with aclosing(messages):
            async for message in messages:
                if (delta := reader.read(message)) is not None:
                    yield delta
        yield reader.end()


class _SigV4Auth(httpx.Auth):
    requires_request_body = True

    def __init__(self, backend: BackendConfig, signer: Signer) -> None:
        self._backend = backend
        self._signer = signer

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        signed_headers = {"content-type": request.headers["content-type"]}
        try:
            request.headers.update(await self._signer.sign(request.method, str(request.url), request.content, signed_headers))
        except SigningFailed as error:
            raise _signing_error(self._backend, error) from error
        yield request


class _MessageParser:
    """Parse AWS event streams for ``Connection.stream``."""

    def __init__(self) -> None:
        self._decoder = EventStreamDecoder()

    def feed(self, chunk: bytes) -> list[StreamMessage]:
        try:
            return self._decoder.feed(chunk)
        except BrokenEventStream as error:
            raise malformed_response("its event stream is damaged") from error

    def close(self) -> list[StreamMessage]:
        return []


class _StreamReader:
    """Turn the messages of one stream into deltas. Usage arrives after the end, so only the last delta has it."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._texts = SurrogateJoiner()
        self._usage: UsagePayload | None = None
        self._stop_reason = ""
        self._calls: dict[int, int] = {}  # content block -> number of the tool call
        self._calls_without_arguments: set[int] = set()  # blocks of tool calls whose arguments have not begun

    def read(self, message: StreamMessage) -> ChatDelta | None:
        if message.failed:
            raise _failure(message.name, None, parse_error_body(message.payload).message, secrets=self._secrets)
        payload = parse(EventPayload, message.payload)
        block = payload.contentBlockIndex
        match message.name:
            case "contentBlockStart" if payload.start.toolUse is not None:
                self._calls[block] = len(self._calls)
                self._calls_without_arguments.add(block)
                return ChatDelta(tool_calls=(_tool_call_start(self._calls[block], payload.start.toolUse),))
            case "contentBlockDelta":
                return self._read_delta(block, payload)
            case "contentBlockStop" if block in self._calls_without_arguments:
                return self._arguments(block, "{}")
            case "messageStop":
                self._stop_reason = payload.stopReason
                _check_end(self._stop_reason)
            case "metadata":
                self._usage = payload.usage
            case _:  # messageStart, and future message types
                pass
        return None

    def end(self) -> ChatDelta:
        """Return the last delta.

        Raises:
            BackendUnavailable: the stream ended before the model did.
        """
        if not self._stop_reason:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        last = self._texts.end() or ChatDelta()
        usage = self._usage.tokens if self._usage else None
        return replace(last, finish_reason=finish_reason(self._stop_reason), usage=usage)

    def _read_delta(self, block: int, payload: EventPayload) -> ChatDelta | None:
        delta = payload.delta
        if delta.toolUse is not None and delta.toolUse.input:
            if block not in self._calls:
                raise malformed_response("arguments without a tool call")
            return self._arguments(block, delta.toolUse.input)
        return ChatDelta(self._texts.content(delta.text)) if delta.text else None

    def _arguments(self, block: int, piece: str) -> ChatDelta:
        self._calls_without_arguments.discard(block)
        index = self._calls[block]
        return ChatDelta(tool_calls=(ToolCallDelta(index, arguments=self._texts.arguments(index, piece)),))


def _path(model: str, operation: str) -> str:
    return f"/model/{quote(model, safe='')}/{operation}"


def _is_last(message: StreamMessage) -> bool:
    return message.name == "metadata"


def _tool_call_start(index: int, use: ToolUsePayload, arguments: str = "") -> ToolCallDelta:
    if not (use.toolUseId and use.name):
        raise malformed_response("a tool call has no name")
    return ToolCallDelta(index, join_surrogates(use.toolUseId), join_surrogates(use.name), join_surrogates(arguments))


def _check_end(stop_reason: str) -> None:
    if stop_reason in _INTERRUPTED:
        raise BackendUnavailable("The model's answer was malformed.")


def _signing_error(backend: BackendConfig, error: SigningFailed) -> BackendAuthError:
    """Return the failure for a request that cannot be signed, and log the reason for the operator."""
    write_line({"at": now(), "level": "error", "event": "not_signed", "backend": backend.name, "reason": str(error)})
    return BackendAuthError(f"Requests to Bedrock cannot be signed: {error}.")


def _failure_of(status: int, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str] = ()) -> BackendError:
    """Return the failure for an error answer. A header has the exception's name, sometimes followed by ":" and more text."""
    kind = headers.get("x-amzn-errortype", "").split(":")[0]
    return _failure(kind, status, parse_error_body(body).message, wait=retry_after(headers), secrets=secrets)


def _failure(
    kind: str, status: int | None, message: str, *, wait: float | None = None, secrets: Sequence[str] = ()
) -> BackendError:
    """Return the failure for an exception. An exception inside a stream has no ``status``."""
    name = kind.lower().removesuffix("exception")
    failure = error_from_status(
        status or _STATUSES.get(name, 500), ErrorDetails(message, frozenset({name})), wait=wait, secrets=secrets
    )
    error_type = (
        BackendForbidden
        if name == "validation" and _MODEL_ACCESS_MESSAGES.fullmatch(message)
        else _ERROR_TYPES.get(name, type(failure))
    )
    return error_type(failure.message, status=failure.status, retry_after=failure.retry_after)
