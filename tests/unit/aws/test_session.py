"""Calls of the table over plain sockets: what botocore is told of them, and which connections serve again."""

import gc
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)

from spass.aws.clients import Aws
from spass.aws.session import TableSession
from tests.unit.certificates import self_signed

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Amz-Crc32: 1\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;a=b\r\n}\r\n0\r\nx: y\r\n\r\n"


class Peer:
    """Answers each request with the next of ``answers`` (nothing: hangs up; None: says nothing), byte by byte if ``slowly``."""

    def __init__(self, *answers: bytes | None, slowly: bool = False, certificate: Path | None = None) -> None:
        self.secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if certificate:
            self.secure.load_cert_chain(certificate)
        self.plain = certificate is None
        self.answers = list(answers)
        self.connections = 0
        self.asked: list[bytes] = []
        self.slowly = slowly
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def serve(self) -> None:
        while self.answers:
            connected, _ = self.listening.accept()
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            try:
                connected = connected if self.plain else self.secure.wrap_socket(connected, server_side=True)
            except ssl.SSLError:
                connected.close()
                continue
            with connected, connected.makefile("rb") as reader:
                while self.answers and (asked := _read(reader.readline, reader.read)):
                    self.asked.append(asked)
                    answer = self.answers.pop(0)
                    if answer is None:
                        reader.read()
                        break
                    if not answer:
                        break
                    for piece in [answer[at : at + 1] for at in range(len(answer))] if self.slowly else [answer]:
                        connected.sendall(piece)


def _read(line: Callable[[], bytes], read: Callable[[int], bytes]) -> bytes:
    head, length = b"", 0
    while (got := line()) not in (b"\r\n", b""):
        head += got
        if got.lower().startswith(b"content-length:"):
            length = int(got.split(b":")[1])
    return head + read(length) if head else b""


@contextmanager
def serving(*answers: bytes | None, slowly: bool = False, certificate: Path | None = None) -> Iterator[Peer]:
    peer = Peer(*answers, slowly=slowly, certificate=certificate)
    thread = threading.Thread(target=peer.serve, daemon=True)
    thread.start()
    try:
        yield peer
        thread.join(10)
        assert not thread.is_alive()
    finally:
        peer.listening.close()


@pytest.fixture
def session() -> Iterator[TableSession]:
    made = TableSession(connect_seconds=1, read_seconds=0.2)
    yield made
    made.close()


def request(port: int, scheme: str = "http") -> AWSPreparedRequest:
    headers = {"X-Amz-Target": "DynamoDB_20120810.GetItem", "Content-Type": "application/x-amz-json-1.0"}
    made: AWSPreparedRequest = AWSRequest("POST", f"{scheme}://127.0.0.1:{port}/", headers, b'{"a": 1}').prepare()
    return made


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("answer", [ANSWER, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER, b"HTTP/1.0 200 OK\r\n\r\n{}"])
def test_an_answer_is_read_whole(session: TableSession, answer: bytes, slowly: bool) -> None:
    with serving(answer, slowly=slowly) as peer:
        response = session.send(request(peer.port))
    assert (response.status_code, response.content) == (200, b"{}")
    assert peer.asked[0].startswith(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % peer.port)
    assert peer.asked[0].endswith(b'{"a": 1}')


def test_headers_are_found_however_they_are_written(session: TableSession) -> None:
    with serving(ANSWER) as peer:
        assert session.send(request(peer.port)).headers.get("x-amz-CRC32") == "1"


def test_one_connection_serves_again(session: TableSession) -> None:
    with serving(ANSWER, CHUNKED, ANSWER) as peer:
        assert [session.send(request(peer.port)).content for _ in range(3)] == [b"{}"] * 3
    assert peer.connections == 1


def test_a_session_that_nobody_needs_any_more_hangs_up() -> None:
    with serving(ANSWER, ANSWER) as peer:
        for _ in range(2):
            made = TableSession(connect_seconds=1, read_seconds=1)
            made.send(request(peer.port))
            del made
            gc.collect()
    assert peer.connections == 2


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_a_connection_of_which_more_could_come_does_not_serve_again(session: TableSession, first: bytes) -> None:
    with serving(first, ANSWER) as peer:
        assert [session.send(request(peer.port)).content for _ in range(2)] == [b"{}"] * 2
    assert peer.connections == 2


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([b""], ConnectionClosedError),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], ConnectionClosedError),
        ([ANSWER[:-1]], ConnectionClosedError),
        ([CHUNKED[:-20]], ConnectionClosedError),
        ([b"SSH-2.0\r\n\r\n"], HTTPClientError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} "], HTTPClientError),
        ([None], ReadTimeoutError),
    ],
)
def test_what_goes_wrong_is_one_of_botocores_errors(
    session: TableSession, answers: Sequence[bytes | None], error: type[Exception]
) -> None:
    with serving(*answers) as peer, pytest.raises(error):
        session.send(request(peer.port))


def test_nobody_there_is_an_endpoint_that_cannot_be_reached(session: TableSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EndpointConnectionError):
        session.send(request(port))


def test_a_connection_that_does_not_come_about_in_time(session: TableSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", late)
    with pytest.raises(ConnectTimeoutError):
        session.send(request(9))


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with serving(ANSWER, CHUNKED, ANSWER, certificate=certificate) as peer:
        with pytest.raises(SSLError):
            TableSession(connect_seconds=1, read_seconds=1).send(request(peer.port, "https"))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        trusting = TableSession(connect_seconds=1, read_seconds=1)
        assert [trusting.send(request(peer.port, "https")).content for _ in range(3)] == [b"{}"] * 3
        trusting.close()
    assert peer.connections == 2


def test_botocore_tries_again_and_reads_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    item = b'{"Item":{"pk":{"S":"T#demo#x"},"sk":{"S":"y"},"n":{"N":"7"}}}'
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with serving(b"", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(item) + item) as peer:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{peer.port}")
        client = Aws(table="spass", bucket="spass")._dynamodb
        found = client.get_item(TableName="spass", Key={"pk": {"S": "T#demo#x"}, "sk": {"S": "y"}})
        client.close()
    assert found["Item"]["n"] == {"N": "7"}
    assert len(peer.asked) == 2


@pytest.mark.parametrize(("proxy", "ours"), [("", True), ("http://proxy.example.com:3128", False)])
def test_a_proxy_of_the_environment_is_left_to_botocore(proxy: str, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    client = Aws(table="spass", bucket="spass")._dynamodb
    assert isinstance(client._endpoint.http_session, TableSession) == ours  # type: ignore[attr-defined]
