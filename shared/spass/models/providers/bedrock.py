"""Call Amazon Bedrock: Converse and ConverseStream for chat, InvokeModel for embeddings.

The backend's ``model_names`` must give Bedrock's name of each model: the id of a model or of an inference profile, or an ARN. The
region is in ``base_url`` or in the environment. Requests are signed with the credentials of this process, unless
``api_key_env`` is set: then the key is sent as a bearer token.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final
from urllib.parse import quote

import httpx

from spass.aws.eventstream import BrokenEventStream, EventStreamDecoder, StreamMessage
from spass.aws.signing import Signer, SigningFailed
from spass.core.messages import Json
from spass.models.backends import bedrock_region
from spass.models.errors import BackendAuthError, BackendUnavailable
from spass.models.providers.bedrock_embeddings import embed
from spass.models.providers.bedrock_wire import (
    BlockPayload,
    ConversePayload,
    EventPayload,
    UsagePayload,
    converse_body,
    finish_reason,
)
from spass.models.providers.content_blocks import BlockReader
from spass.models.providers.error_responses import aws_code, error_inside_answer, parse_error_body
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import HttpProvider, merge_deltas
from spass.models.providers.payloads import parse
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.redaction.log import write_event
from spass.tenancy.config import BackendConfig

_INTERRUPTED: Final = frozenset({"malformed_model_output", "malformed_tool_use"})


class Bedrock(HttpProvider[StreamMessage]):
    """Call Bedrock in one region of AWS."""

    def address(self) -> str:
        try:
            return self.backend.base_url or f"https://bedrock-runtime.{self._signer.region}.amazonaws.com"
        except SigningFailed as error:
            raise _signing_error(self.backend, error) from error

    async def sign(self, request: httpx.Request) -> None:
        if self.key:
            return
        signed_headers = {"content-type": request.headers["content-type"]}
        try:
            request.headers.update(await self._signer.sign(request.method, str(request.url), request.content, signed_headers))
        except SigningFailed as error:
            raise _signing_error(self.backend, error) from error

    def path(self, request: ChatRequest) -> str:
        return _path(request.model, "converse-stream" if request.stream else "converse")

    def body(self, request: ChatRequest) -> dict[str, Json]:
        return converse_body(request)

    def reader(self) -> "_Reader":
        return _Reader(self.connection.secrets)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        return await embed(self.connection, _path(request.model, "invoke"), request, context)

    @cached_property
    def _signer(self) -> Signer:
        return Signer("bedrock", bedrock_region(self.backend.base_url))


class _MessageParser:
    """Parse AWS event streams."""

    def __init__(self) -> None:
        self._decoder = EventStreamDecoder()

    def feed(self, chunk: bytes) -> list[StreamMessage]:
        try:
            return self._decoder.feed(chunk)
        except BrokenEventStream as error:
            raise malformed_response("its event stream is damaged") from error

    def close(self) -> list[StreamMessage]:
        return []


class _Reader(BlockReader[StreamMessage]):
    """Read one answer. In a stream, usage arrives after the end of the text, so only the last delta has it."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__(_MessageParser(), secrets)
        self._usage: UsagePayload | None = None
        self._stop_reason = ""

    def is_last(self, event: StreamMessage) -> bool:
        return event.name == "metadata"

    def read(self, event: StreamMessage) -> ChatDelta | None:
        if event.failed:
            error = {"code": aws_code(event.name), "message": parse_error_body(event.payload).message}
            raise error_inside_answer(error, secrets=self._secrets)
        payload = parse(EventPayload, event.payload)
        match event.name:
            case "contentBlockStart":
                return self._start_block(payload.contentBlockIndex, payload.start)
            case "contentBlockDelta":
                delta = payload.delta
                if delta.toolUse is not None and delta.toolUse.input:
                    return self.add_arguments(payload.contentBlockIndex, delta.toolUse.input)
                return self.text(delta.text)
            case "contentBlockStop":
                return self.end_block(payload.contentBlockIndex)
            case "messageStop":
                self._stop(payload.stopReason)
            case "metadata":
                self._usage = payload.usage
            case _:  # messageStart, and future message types
                pass
        return None

    def end(self) -> ChatDelta:
        if not self._stop_reason:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        usage = self._usage.tokens if self._usage else None
        return replace(self._last_characters(), finish_reason=finish_reason(self._stop_reason), usage=usage)

    def read_whole(self, body: bytes) -> ChatDelta:
        payload = parse(ConversePayload, body)
        self._stop(payload.stopReason)
        self._usage = payload.usage
        deltas: list[ChatDelta | None] = []
        for index, block in enumerate(payload.output.message.content):
            deltas += [self._start_block(index, block), self.end_block(index)]
        return merge_deltas([*deltas, self.end()])

    def _start_block(self, index: int, block: BlockPayload) -> ChatDelta | None:
        if block.toolUse is None:
            return self.text(block.text)
        return self.start_call(index, block.toolUse.toolUseId, block.toolUse.name, block.toolUse.input)

    def _stop(self, reason: str) -> None:
        if reason in _INTERRUPTED:
            raise BackendUnavailable("The model's answer was malformed.")
        self._stop_reason = reason


def _path(model: str, operation: str) -> str:
    return f"/model/{quote(model, safe='')}/{operation}"


def _signing_error(backend: BackendConfig, error: SigningFailed) -> BackendAuthError:
    """Return the failure for a request that cannot be signed, and log the reason for the operator."""
    write_event("not_signed", {"backend": backend.name, "reason": str(error)}, level="error")
    return BackendAuthError(f"Requests to Bedrock cannot be signed: {error}.")
