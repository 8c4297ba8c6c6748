"""Stop chats of a started gateway, over sockets: its providers see their connections closed within two seconds, and never get a
conversation that they would refuse. Hostile providers end a stream as its grammar says."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.e2e.conftest import Gateway, running_site
from tests.e2e.sites import Site, chat_model
from tests.stream_grammar import Event, answer_text, of_type, parse_events, receive
from tests.unit.models.wire_forms import SCRIPTS, WIRE_FORMS, WIRE_PATHS, WireScript, call
from tests.valid_conversations import check_anthropic, check_openai

TOKEN: Final = "stopping-token"
STOPS: Final = 20
MAX_SECONDS: Final = 2.0
HANG_SECONDS: Final = 20
PROVIDERS: Final = sorted(WIRE_FORMS)
IMPATIENT: Final = "-impatient"
"""The end of the names of models whose backends wait only a second for the next byte."""
SILENCES: Final = {
    "a silence before the first token": WireScript([], cut=True),
    "a silence in the text": WireScript(["Well, well. "], cut=True),
    "a silence after a call": WireScript([[call("calculator", {"expression": "6*7"})]], cut=True),
}
SPLIT_NAME: Final = WireScript([[call("calculator", {"expression": "6*7"}, piece=1)]])
HOSTILE: Final = {**SCRIPTS, **SILENCES, "a call whose name is split at every character": SPLIT_NAME}


@dataclass
class ModelCall:
    """A request of the turn ``turn``. ``ended`` is when it ended or its client disconnected, by the monotonic clock."""

    turn: str
    began: float
    ended: float | None = None
    is_cut: bool = False


@dataclass
class SlowUpstream:
    """A provider in three forms. The turn of a message that contains ``turn 7`` writes texts and calls tools at random, slowly.
    One that contains ``turn 7quick`` is answered at once. A turn that has a script begins with it, byte for byte, and then is
    silent if its name says so.

    ``refused`` are the conversations that the real provider would refuse.
    """

    scripts: dict[str, WireScript] = field(default_factory=dict)
    calls: list[ModelCall] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def respond(self, request: HttpRequest) -> HttpAnswer | None:
        if request.method == "GET":
            return json_answer(
                {"models": [{"name": "ollama"}, {"name": "ollama-impatient"}]}
            )  # the gateway asks Ollama for its models
        (provider,) = [name for name, path in WIRE_PATHS.items() if path == request.path]
        body = request.json
        self._check(provider, body["messages"])
        written = json.dumps(body["messages"], ensure_ascii=False)
        model_call = ModelCall(re.findall(r"turn (\w+)", written)[-1], time.monotonic())
        self.calls.append(model_call)
        return self._answer(provider, body, model_call, request)

    def _check(self, provider: str, messages: list[Mapping[str, Any]]) -> None:
        try:
            if provider == "openai":
                check_openai(messages)
            if provider == "anthropic":
                check_anthropic(messages)
        except AssertionError as error:
            self.refused.append(f"{error}: {messages}")

    def _answer(self, provider: str, body: Mapping[str, Any], model_call: ModelCall, request: HttpRequest) -> HttpAnswer | None:
        if "tools" not in body:  # the tool llm
            self._wait(model_call, request, HANG_SECONDS)
            return None
        if script := self.scripts.pop(model_call.turn, None):
            played = b"".join(WIRE_FORMS[provider](script))
            if script is SPLIT_NAME:
                played = _split_name(played)
            pieces = [played[at : at + 1] for at in range(len(played))]
            pauses = [0.0] * len(pieces)
            if "silence" in model_call.turn:
                pieces, pauses = [*pieces, b""], [*pauses, HANG_SECONDS]
            return HttpAnswer(self._write(model_call, request, pieces, pauses), content_type="text/event-stream")
        rng = random.Random(f"{model_call.turn} {len(body['messages'])}")
        is_quick = model_call.turn.endswith(("quick", "hostile"))
        script = WireScript(["Well, ", "the end."]) if is_quick else _random_script(rng, model_call.turn)
        pieces = WIRE_FORMS[provider](script)
        pauses = [0.0 if is_quick else 0.4 * rng.random() for _ in pieces]
        return HttpAnswer(self._write(model_call, request, pieces, pauses), content_type="text/event-stream")

    def _write(self, model_call: ModelCall, request: HttpRequest, pieces: list[bytes], pauses: list[float]) -> Iterator[bytes]:
        for piece, pause in zip(pieces, pauses, strict=True):
            if self._wait(model_call, request, pause):
                return
            yield piece
        model_call.ended = time.monotonic()

    def _wait(self, model_call: ModelCall, request: HttpRequest, seconds: float) -> bool:
        """Wait for some seconds. Return True if the client has disconnected meanwhile."""
        try:
            model_call.is_cut = request.wait_for_disconnect(seconds) if seconds else False
        except ConnectionError:
            model_call.is_cut = True
        if model_call.is_cut:
            model_call.ended = time.monotonic()
        return model_call.is_cut


def _split_name(body: bytes) -> bytes:
    """Send the event with the name of the call once for each of its characters."""
    events = body.decode().split("\n\n")
    (named,) = [event for event in events if '"name": "calculator"' in event]
    letters = [named.replace('"calculator"', f'"{letter}"') for letter in "calculator"]
    return body.decode().replace(named, "\n\n".join(letters)).encode()


def _random_script(rng: random.Random, turn: str) -> WireScript:
    texts = [rng.choice(["So far ", "so good. ", "über 🙂 ", " ", "\n"]) for _ in range(rng.choice([0, 2, 8]))]
    calls = [call("calculator", {"expression": "6*7"}, piece=3), call("llm", {"prompt": f"Think for turn {turn}."})]
    return WireScript([*texts, rng.sample(calls, k=rng.choice([1, 2]))])


@pytest.fixture(scope="module")
def upstream() -> SlowUpstream:
    return SlowUpstream()


@pytest.fixture(scope="module")
def gateway(upstream: SlowUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway of its own, which calls no model twice."""
    names = [name + suffix for name in PROVIDERS for suffix in ("", IMPATIENT)]
    site = Site(
        "stopping",
        upstream.respond,
        [chat_model(name) for name in names],
        [{"name": "slow", "model": "openai", "system_prompt": "Answer.", "tools": ["calculator", "llm"], "max_turns": 4}],
        backends=[
            {"name": name, "provider": name.removesuffix(IMPATIENT), "supported_models": [name]}
            | ({"timeout": 1} if name.endswith(IMPATIENT) else {})
            for name in names
        ],
    )
    with running_site(tmp_path_factory.mktemp("stopping"), site) as gateway:
        yield gateway


class Chat:
    """A chat of its own session. ``body`` is what the reader of its stream has received."""

    def __init__(self, gateway: Gateway, name: str, model: str) -> None:
        self.gateway = gateway
        self.name = name
        self.model = model
        self.body = b""
        self.has_begun = threading.Event()
        self.leaves = threading.Event()

    def post(self, text: str) -> bytes:
        message = {"role": "user", "content": text}
        body = {"message_id": text.replace(" ", "-"), "session_id": self.name, "model": self.model, "messages": [message]}
        self.body = b""
        with self.gateway.client(TOKEN) as client, client.stream("POST", "/c1/agents/slow/chat", json=body) as answer:
            assert answer.status_code == 200
            for piece in answer.iter_bytes():
                self.body += piece
                self.has_begun.set()
                if self.leaves.is_set():
                    break
        return self.body

    def stop(self, message_id: str) -> tuple[int, str]:
        with self.gateway.client(TOKEN) as client:
            answer = client.delete(f"/c1/agents/slow/chat/{message_id}")
        return answer.status_code, answer.json()["status"]

    def follow(self, message_id: str) -> bytes:
        with self.gateway.client(TOKEN) as client:
            return client.get(f"/c1/agents/slow/chat/{message_id}").content

    def get(self, path: str) -> Any:
        with self.gateway.client(TOKEN) as client:
            return client.get(f"/a1/agents/slow/sessions/{path}").json()


def stop_at_random(gateway: Gateway, upstream: SlowUpstream, number: int) -> str:
    """Stop a turn after a random time, and continue its session. The client of every third turn has left before."""
    rng, chat = random.Random(number), Chat(gateway, f"chat-{number}", PROVIDERS[number % len(PROVIDERS)])
    message_id = f"turn-{number}"
    with ThreadPoolExecutor(1) as reader:
        turn = reader.submit(chat.post, f"turn {number}")
        assert chat.has_begun.wait(HANG_SECONDS)
        time.sleep(rng.choice([0.0, 0.5, 3.0]) * rng.random())
        if number % 3 == 0:
            chat.leaves.set()
        status = chat.stop(message_id)
        stopped_at, seen = time.monotonic(), receive(chat.body).events
        assert status in [(202, "cancelling"), (200, "done")]
        turn.result(HANG_SECONDS)
    body = chat.follow(message_id)
    assert body.startswith(chat.body)
    assert chat.stop(message_id) == (200, "done")
    events = parse_events(body)
    assert events[: len(seen)] == seen
    calls = [one for one in upstream.calls if one.turn == str(number)]
    assert calls or not of_type(events, "token"), "on a busy machine the stop may come before the first call of the model"
    assert all(one.ended is not None and one.ended <= stopped_at + MAX_SECONDS for one in calls), calls
    assert all(one.began <= stopped_at + MAX_SECONDS for one in calls)
    # AWS runs nothing after the response, so it lasts as long as the turn, also when the client has left.
    model_seconds = max(one.ended or 0 for one in calls) - calls[0].began if calls else 0
    # A busy machine's upstream notices a closed connection late.
    assert response_seconds(gateway, events[0]["request_id"]) + MAX_SECONDS >= model_seconds
    finish_reason = check_recorded(chat, events)
    chat.leaves.clear()
    (done,) = of_type(parse_events(chat.post(f"turn {number}quick")), "done")
    assert done["finish_reason"] == "stop"
    assert len(chat.get(f"{done['session_id']}/messages")["messages"]) > len(of_type(events, "tool_call")) + 3
    return finish_reason


def response_seconds(gateway: Gateway, request_id: str) -> float:
    """Wait until the response of a chat has ended, and return how long it took by the gateway's log."""
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        lines = [line for line in gateway.output.splitlines() if request_id in line and '"method":"POST"' in line]
        if lines:
            return float(json.loads(lines[0])["ms"]) / 1000
        time.sleep(0.05)
    raise AssertionError("the response has not ended")


def check_recorded(chat: Chat, events: list[Event]) -> str:
    """Assert that the history has what the stream shows. Return the turn's finish reason."""
    (done,) = of_type(events, "done")
    assert chat.get(done["session_id"])["active_turn"] is None
    messages = chat.get(f"{done['session_id']}/messages")["messages"]
    assert messages[-1]["id"] == done["message"]["id"]
    assert messages[-1]["content"] == answer_text(events)
    results = {call["id"]: call["result"] for call in of_type(events, "tool_call")}
    stored = {message["tool_call_id"]: json.loads(message["content"]) for message in messages if message["role"] == "tool"}
    assert stored == results
    finish_reason: str = done["finish_reason"]
    return finish_reason


def test_a_stop_closes_the_connection_to_the_model_and_keeps_the_turn(gateway: Gateway, upstream: SlowUpstream) -> None:
    with ThreadPoolExecutor(10) as pool:
        reasons = list(pool.map(lambda number: stop_at_random(gateway, upstream, number), range(STOPS)))
    assert reasons.count("cancelled") > STOPS / 2
    assert any(one.is_cut for one in upstream.calls)
    assert upstream.refused == []


def meet_hostile(gateway: Gateway, upstream: SlowUpstream, provider: str, name: str) -> None:
    """Run a turn whose provider answers the first request with a script. Check its stream, its record and its connections."""
    script = HOSTILE[name]
    turn = re.sub(r"\W", "", f"{provider}{name}") + "hostile"
    upstream.scripts[turn] = script
    chat = Chat(gateway, turn, provider + IMPATIENT)
    events = parse_events(chat.post(f"turn {turn}"))
    fails = script.cut or script.error is not None
    assert events[-1]["type"] == ("error" if fails else "done"), (name, events[-1])
    messages = chat.get(f"{events[0]['session_id']}/messages")["messages"]
    if fails:
        assert events[-1]["error"]["code"] == "upstream_error"
        assert messages == []
    else:
        assert check_recorded(chat, events) in ("stop", "length")
    first, *others = [one for one in upstream.calls if one.turn == turn]
    assert first.is_cut == (name in SILENCES)
    assert len(others) == (0 if fails or not script.calls else 1)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_hostile_provider_ends_a_stream_as_its_grammar_says(gateway: Gateway, upstream: SlowUpstream, provider: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: meet_hostile(gateway, upstream, provider, name), HOSTILE))
    assert upstream.refused == []
