"""Two gateways, each a process of its own, over one store: a stream of one is read in parts from both, byte for byte."""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from spass.testing.http_server import HttpAnswer, HttpRequest
from tests.e2e.conftest import Gateway, second_gateway
from tests.e2e.sites import Site, chat_model, share
from tests.stream_grammar import answer_text, parse_events, receive

TOKEN: Final = "talking-token"
CHAT: Final = "/c1/agents/talker/chat"
WORDS: Final = [f"wörd{number} " for number in range(60)]


def talk(_: HttpRequest) -> HttpAnswer:
    """Answer with the words, one every 50 ms."""

    def chunks() -> Iterator[bytes]:
        for number, word in enumerate([*WORDS, ""]):
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None if number < len(WORDS) else "stop"}
            chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "talking", "choices": [choice]}
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            time.sleep(0.05)
        yield b"data: [DONE]\n\n"

    return HttpAnswer(chunks(), content_type="text/event-stream")


share(Site("talking", talk, [chat_model("talking")], [{"name": "talker", "model": "talking"}]))


@pytest.fixture(scope="module")
def gateways(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """The shared gateway, and one that uses the storage of the shared one."""
    with second_gateway(gateway, tmp_path_factory.mktemp("second") / "home") as second:
        yield gateway, second


def send(gateway: Gateway, message_id: str) -> bytes:
    """Send a chat and read its whole stream."""
    body = {"message_id": message_id, "session_id": message_id, "messages": [{"role": "user", "content": "Talk."}]}
    with gateway.client(TOKEN) as client:
        answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.content


def read_in_parts(gateways: tuple[Gateway, Gateway], message_id: str, seed: int) -> list[bytes]:
    """Read a stream in connections to either gateway, which are cut after random bytes."""
    rng, parts, last = random.Random(seed), list[bytes](), ""
    while not any(event["type"] == "done" for part in parts[-1:] for event in receive(part).events):
        headers = {"Last-Event-ID": last} if last else {}
        cut, part = rng.randint(1, 1500), b""
        with (
            rng.choice(gateways).client(TOKEN) as client,
            client.stream("GET", f"{CHAT}/{message_id}", headers=headers) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            for piece in answer.iter_raw():
                part += piece
                if len(part) >= cut:
                    part = part[:cut]
                    break
        parts.append(part)
        ids = receive(part).ids
        last = str(ids[-1]) if ids else last
    return parts


def events(body: bytes) -> list[bytes]:
    return [block for block in body.split(b"\n\n")[:-1] if b"data: " in block]


def test_a_stream_that_is_cut_continues_on_another_gateway(gateways: tuple[Gateway, Gateway]) -> None:
    with ThreadPoolExecutor(4) as threads:
        posting = threads.submit(send, gateways[0], "m-1")
        time.sleep(0.7)
        reading = [threads.submit(read_in_parts, gateways, "m-1", seed) for seed in range(3)]
        whole = posting.result()
        assert answer_text(parse_events(whole)) == "".join(WORDS)
        for parts in (reader.result() for reader in reading):
            assert len(parts) > 2
            assert [event for part in parts for event in events(part)] == events(whole)
            parse_events(*parts)
        afterwards = read_in_parts(gateways, "m-1", 99)
    assert [event for part in afterwards for event in events(part)] == events(whole)


def test_five_equal_requests_to_two_gateways_get_one_turn(gateways: tuple[Gateway, Gateway]) -> None:
    with ThreadPoolExecutor(5) as threads:
        bodies = list(threads.map(lambda at: send(gateways[at % 2], "m-2"), range(5)))
    assert [events(body) for body in bodies] == [events(bodies[0])] * 5
    session = parse_events(bodies[0])[-1]["session_id"]
    with gateways[1].client(TOKEN) as client:
        history = client.get(f"/a1/agents/talker/sessions/{session}/messages").json()["messages"]
    assert [message["content"] for message in history] == ["Talk.", "".join(WORDS)]
