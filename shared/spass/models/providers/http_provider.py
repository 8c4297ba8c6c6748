"""Call chat models over HTTP, the same for every wire format: send a request, and read its answer whole or as a stream."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import httpx

from spass.core.messages import Json
from spass.models.errors import BackendCannotStream
from spass.models.providers.http import Connection, malformed_response
from spass.models.providers.payloads import SurrogateJoiner
from spass.models.providers.sse import EventTooLong, StreamParser
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.tenancy.config import BackendConfig

E = TypeVar("E")
T = TypeVar("T")


class AnswerReader(ABC, Generic[E]):
    """Read one answer. ``parser`` parses the events of a stream, and ``secrets`` are redacted in its errors. ``has_ended`` is
    True once ``feed`` has read the last event.

    Reasoning does not begin an answer: the next delta counts its characters.
    """

    def __init__(self, parser: StreamParser[E], secrets: Sequence[str]) -> None:
        self.has_ended = False
        self._parser = parser
        self._secrets = secrets
        self._texts = SurrogateJoiner()
        self._answer_began = False
        self._reasoning_characters = 0  # characters of reasoning that are not in a delta yet

    def feed(self, piece: bytes | None) -> Iterator[ChatDelta]:
        """Yield the deltas that the next ``piece`` of a stream adds. None is the end of the body."""
        try:
            events = self._parser.close() if piece is None else self._parser.feed(piece)
        except EventTooLong as error:
            raise malformed_response("an event does not end") from error
        for event in events:
            if (delta := self.read(event)) is not None:
                yield delta
            if self.is_last(event):
                self.has_ended = True
                return
        self.has_ended = piece is None

    @abstractmethod
    def is_last(self, event: E) -> bool:
        """Return True if nothing that belongs to the answer follows ``event``, which has been read."""

    @abstractmethod
    def read(self, event: E) -> ChatDelta | None:
        """Return the delta that ``event`` adds, or None."""

    @abstractmethod
    def end(self) -> ChatDelta | None:
        """Return the last delta of a stream, or None. Raise ``BackendUnavailable`` if the stream ended before the model did."""

    @abstractmethod
    def read_whole(self, body: bytes) -> ChatDelta:
        """Return the answer in ``body``, which was not streamed."""

    def _next_delta(self, delta: ChatDelta | None) -> ChatDelta | None:
        """Return ``delta`` with the reasoning before it. Reasoning alone is a delta once the answer has begun."""
        if delta is None and not (self._answer_began and self._reasoning_characters):
            return None
        self._answer_began = True
        return self._with_reasoning(delta or ChatDelta())

    def _with_reasoning(self, delta: ChatDelta) -> ChatDelta:
        characters, self._reasoning_characters = self._reasoning_characters, 0
        return replace(delta, reasoning_characters=characters) if characters else delta

    def _last_characters(self) -> ChatDelta:
        """Return the incomplete characters that remain at the end of the answer."""
        return self._texts.end() or ChatDelta()


class HttpProvider(ABC, Generic[E]):
    """A provider over HTTP. A subclass writes the requests and reads the answers of one wire format.

    ``base_url`` is the address of a backend without one, and ``chat_path`` the path of chat requests below the address.
    """

    base_url: ClassVar[str] = ""
    chat_path: ClassVar[str] = ""

    def __init__(self, backend: BackendConfig, key: str | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.backend = backend
        self.key = key
        self._transport = transport

    def address(self) -> str:
        return self.backend.base_url or self.base_url

    def path(self, request: ChatRequest) -> str:
        """Return the path of ``request`` below the address."""
        del request
        return self.chat_path

    @abstractmethod
    def body(self, request: ChatRequest) -> dict[str, Json]:
        """Return the body of a chat request, or raise ``BackendUnsupported`` if the provider lacks something in it."""

    @abstractmethod
    def reader(self) -> AnswerReader[E]:
        """Return a reader for one answer."""

    def headers(self) -> Mapping[str, str]:
        """Return the headers that authenticate each request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    async def sign(self, request: httpx.Request) -> None:
        """Sign a request whose headers and body are complete, if ``headers`` do not suffice."""

    @cached_property
    def connection(self) -> Connection:
        """Connect at the first call: a wrong configuration must fail calls, not the process."""
        return Connection(self.backend, self.address(), self.headers(), key=self.key, sign=self.sign, transport=self._transport)

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        body = self.body(request)
        return self._stream_or_complete(request, body, context) if request.stream else self._complete(request, body, context)

    async def aclose(self) -> None:
        if "connection" in vars(self):
            await self.connection.aclose()

    async def _complete(
        self, request: ChatRequest, body: Mapping[str, Json], context: CallContext
    ) -> AsyncGenerator[ChatDelta, None]:
        answer = await self.connection.post(self.path(request), body, context, generates=True)
        if context.on_body is not None:
            context.on_body(answer)
        yield self.reader().read_whole(answer)

    async def _stream_or_complete(
        self, request: ChatRequest, body: Mapping[str, Json], context: CallContext
    ) -> AsyncGenerator[ChatDelta, None]:
        """Yield the streamed answer, or the whole answer if the provider says that it cannot stream it: some models cannot, or
        cannot if the request has tools."""
        reader = self.reader()
        piece: bytes | None = b""
        try:
            async with self.connection.stream(self.path(request), body, context) as answer:
                while not reader.has_ended:
                    piece = await answer.next_piece()
                    for delta in reader.feed(piece):
                        yield delta
                if piece is not None:
                    await answer.drain()
            if (last := reader.end()) is not None:
                yield last
        except BackendCannotStream:
            if context.attempt.started:
                raise
        else:
            return
        async with aclosing(self.chat(replace(request, stream=False), context)) as deltas:
            async for delta in deltas:
                yield delta


def merge_deltas(deltas: Iterable[ChatDelta | None]) -> ChatDelta:
    """Return one delta with the contents of ``deltas``, and with the last finish reason, usage and cost among them."""
    parts = [delta for delta in deltas if delta is not None]
    return ChatDelta(
        "".join(delta.content for delta in parts),
        tuple(call for delta in parts for call in delta.tool_calls),
        _last(delta.finish_reason for delta in parts),
        _last(delta.usage for delta in parts),
        _last(delta.cost_usd for delta in parts),
        "".join(delta.refusal for delta in parts),
        reasoning_characters=sum(delta.reasoning_characters for delta in parts),
    )


def _last(values: Iterable[T | None]) -> T | None:
    return next((value for value in reversed([*values]) if value is not None), None)
