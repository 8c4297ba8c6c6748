"""The HTTP session of the table's client, over sockets: answers, kept connections, TLS, and what botocore retries."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError, SSLError

from spass.aws.clients import Aws
from spass.aws.http_session import HttpSession, use_http_session
from tests.unit.certificates import self_signed

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BODY = b'{"Item":{"pk":{"S":"a"}}}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n" + BODY[:10] + b"\r\nf\r\n" + BODY[10:] + b"\r\n0\r\n\r\n"
CLOSING = ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
BROKEN = b"HTTP/1.1 500 Oh no\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Peer:
    """Answers each request with the next of ``answers``: bytes to send, or None to say nothing. ``hang_up_after`` so many answers
    it closes the connection."""

    answers: list[bytes | None]
    hang_up_after: int = 100
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    talking: socket.socket | None = None
    done: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)

    def serve(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        while not self.done.is_set():
            with suppress(OSError):  # also of a handshake that the client breaks off
                connection, _ = listener.accept()
                if self.done.is_set():  # it was made to end this
                    connection.close()
                    return
                with context.wrap_socket(connection, server_side=True) if context else connection as talking:
                    self.connections += 1
                    self.talking = talking
                    self._talk(talking)
                self.hung_up.set()

    def _talk(self, connection: socket.socket) -> None:
        received = b""
        for _ in range(self.hang_up_after):
            while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _length(received[:end]):
                piece = connection.recv(65536)
                if not piece:
                    return
                received += piece
            self.requests.append(received)
            received = b""
            answer = self.answers.pop(0)
            if answer is None:
                self.done.wait(10)
                return
            connection.sendall(answer)


def _length(head: bytes) -> int:
    return int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])


@contextmanager
def serving(peer: Peer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=peer.serve, args=[listener, context], daemon=True)
        thread.start()
        yield f"{'https' if context else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        peer.done.set()
        if peer.talking is not None:
            with suppress(OSError):
                peer.talking.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            socket.create_connection(listener.getsockname()).close()
        thread.join()


def client_at(url: str, *, attempts: int = 1, read_timeout: float = 10) -> "DynamoDBClient":
    config = Config(retries={"mode": "standard", "total_max_attempts": attempts})
    session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="eu-central-1")
    client = session.client("dynamodb", endpoint_url=url, config=config)
    use_http_session(client, connect_timeout=5, read_timeout=read_timeout)
    return client


def get(client: "DynamoDBClient") -> Any:
    return client.get_item(TableName="t", Key={"pk": {"S": "a"}})["Item"]


def test_requests_go_over_one_connection_and_are_those_of_botocore() -> None:
    peer = Peer([ANSWER, CHUNKED])
    with serving(peer) as url:
        client = client_at(url)
        assert [get(client), get(client)] == [{"pk": {"S": "a"}}] * 2
        client.close()
    assert peer.connections == 1
    for request in peer.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[:2] == [b"POST / HTTP/1.1", b"Host: " + url.removeprefix("http://").encode()]
        assert b"X-Amz-Target: DynamoDB_20120810.GetItem" in lines
        assert any(line.startswith(b"Authorization: AWS4-HMAC-SHA256 ") for line in lines)
        assert json.loads(body) == {"TableName": "t", "Key": {"pk": {"S": "a"}}}


def test_the_table_of_this_process_is_reached_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "eu-central-1")
    aws = Aws(table="t", bucket="b")
    aws.connect()
    assert isinstance(aws._dynamodb._endpoint.http_session, HttpSession)  # type: ignore[attr-defined]


def test_an_answer_in_pieces_is_put_together() -> None:
    with serving(Peer([CHUNKED])) as url:
        assert get(client_at(url)) == {"pk": {"S": "a"}}


def test_a_connection_that_the_other_side_has_closed_is_not_used_again() -> None:
    peer = Peer([ANSWER, ANSWER], hang_up_after=1)
    with serving(peer) as url:
        client = client_at(url)
        get(client)
        assert peer.hung_up.wait(10)
        assert get(client) == {"pk": {"S": "a"}}
    assert peer.connections == 2


def test_a_connection_whose_answer_says_that_it_is_the_last_is_closed() -> None:
    peer = Peer([CLOSING, ANSWER])
    with serving(peer) as url:
        client = client_at(url)
        assert [get(client), get(client)] == [{"pk": {"S": "a"}}] * 2
    assert peer.connections == 2


@pytest.mark.parametrize("answer", [b"", ANSWER[:-1], b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
def test_an_answer_that_breaks_off_or_is_none_counts_as_a_lost_connection(answer: bytes) -> None:
    with serving(Peer([answer], hang_up_after=1)) as url, pytest.raises(ConnectionClosedError):
        get(client_at(url))


@pytest.mark.parametrize("answer", [b"", ANSWER[:-1], BROKEN])
def test_botocore_retries_what_it_would_retry_over_its_own_session(answer: bytes) -> None:
    peer = Peer([answer, ANSWER], hang_up_after=1)
    with serving(peer) as url:
        assert get(client_at(url, attempts=2)) == {"pk": {"S": "a"}}
    assert len(peer.requests) == 2


def test_silence_is_a_timeout_and_ends_the_connection() -> None:
    peer = Peer([None, ANSWER])
    with serving(peer) as url, pytest.raises(ReadTimeoutError):
        get(client_at(url, read_timeout=0.05))


def test_where_nobody_listens_there_is_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EndpointConnectionError):
        get(client_at(f"http://127.0.0.1:{port}"))


def test_tls_trusts_the_authorities_that_are_named_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(Peer([ANSWER]), context) as url:
        with pytest.raises(SSLError):
            get(client_at(url))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        assert get(client_at(url)) == {"pk": {"S": "a"}}


def test_behind_a_proxy_botocore_keeps_its_own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    client = client_at("https://dynamodb.eu-central-1.amazonaws.com")
    assert not isinstance(client._endpoint.http_session, HttpSession)  # type: ignore[attr-defined]
