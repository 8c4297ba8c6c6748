"""One connection that carries one request at a time over HTTP/1.1, with asyncio and llhttp (``httptools``).

A provider's transport (``models/providers/direct.py``) streams its answers. This one reads whole answers.
"""

import asyncio
from typing import Final, NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MAX_ANSWER_BYTES: Final = 64 * 2**20
_WHOLE_ANSWER: Final = 10
"""The time limit of a whole answer, in silences: an endpoint that sends a byte now and then must not hold a call for ever."""


class NoAnswer(Exception):
    """The endpoint was unreachable, or there was no whole answer in time. It may have received the request.

    ``is_stale`` is True if the request was the second or later one of its connection and no byte of an answer arrived: such a
    connection may have died while nobody used it, as in a function that was frozen. ``is_timeout`` is True if time ran out.
    """

    def __init__(self, reason: str, *, is_stale: bool = False, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.is_stale = is_stale
        self.is_timeout = is_timeout


class Answer(NamedTuple):
    """A whole answer. The names of the headers are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_seconds: float) -> None:
        self.is_open = False
        self._loop = loop
        self._silence_seconds = silence_seconds
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._requests = 0
        self._answer: asyncio.Future[Answer] | None = None  # of the request under way
        self._begun = self._heard = 0.0  # when the request was sent, and when its last bytes arrived
        self._received = 0  # bytes since the request was sent
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, request: bytes) -> Answer:
        """Write ``request`` and return its answer.

        Raises:
            NoAnswer: the connection ended, or was silent for too long.
        """
        self._requests += 1
        self._begin_answer()
        self._received = 0
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answer = answer
        self._begun = self._heard = self._loop.time()
        if self._transport is not None and self.is_open:
            self._transport.write(request)
            if self._timer is None:
                self._watch()
        else:
            self._fail("the connection ended before the request")
        try:
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        self.is_open = False
        self._stop_watching()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a stream connection always gets a Transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # these bytes answer no request
            return
        self._heard = self._loop.time()
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.is_open = False  # also if the answer was whole
            self._fail("the answer is not HTTP")
        if self._received > _MAX_ANSWER_BYTES:
            self._fail("the answer is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._stop_watching()
        if exc is None and self._status and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.on_message_complete()  # the end of the connection is the end of such an answer
        self._fail("the connection ended before the answer did")

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.is_open = False  # more bytes than the answer has: those of the next one could not be told from them

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the final answer follows
            self._begin_answer()
        else:
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._status and self._answer is not None and not self._answer.done():
            self.is_open = self.is_open and self._parser.should_keep_alive() and self._is_request_sent
            self._answer.set_result(Answer(self._status, self._headers, b"".join(self._pieces)))
            self._begin_answer()  # an idle connection must not keep the bytes

    @property
    def _is_request_sent(self) -> bool:
        """Tell whether the whole request was sent. After an early answer, the rest of it would be read as the next request."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def _begin_answer(self) -> None:
        self._status, self._headers, self._pieces = 0, {}, []

    def _fail(self, reason: str, *, is_timeout: bool = False) -> None:
        if self._answer is not None and not self._answer.done():
            is_stale = self._requests > 1 and not self._received
            self._answer.set_exception(NoAnswer(reason, is_stale=is_stale, is_timeout=is_timeout))

    def _watch(self) -> None:
        """Fail the request under way if the endpoint was silent for too long, and otherwise look again when it would have been.

        One timer serves all requests of a connection, because most end long before it: a timer each would take as long as all
        that ``httptools`` does.
        """
        self._timer = None
        if self._answer is None or self._answer.done():
            return
        end = min(self._heard + self._silence_seconds, self._begun + self._silence_seconds * _WHOLE_ANSWER)
        if self._loop.time() < end:
            self._timer = self._loop.call_at(end, self._watch)
        else:
            self._fail("no answer in time", is_timeout=True)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
