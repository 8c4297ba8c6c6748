"""Attack the limits of a running gateway: tokens a minute, and the clients that follow streams.

``tokens_per_minute`` also limits calls that take longer than a minute. ``tests/unit/calls/test_admission.py`` and
``tests/unit/models/test_router_limits.py`` test that in virtual time. Here a call of some seconds tests from which moment its
tokens count.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import httpx
import pytest

from spass.tenancy.config import GatewayLimits
from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import Gateway
from tests.e2e.sites import Site, chat_model, share, tenant

CALL_SECONDS: Final = 12
CAP: Final = 1000
FOLLOWERS: Final = GatewayLimits().followers
WAIT_SECONDS: Final = 30.0
CHAT: Final = "/c1/agents/holder/chat"


@dataclass
class Upstream:
    """A provider whose model ``held`` answers after ``release``. Its model ``slow`` answers slowly, ignores ``max_tokens`` and
    reports 33 times the cap."""

    release: threading.Event = field(default_factory=threading.Event)

    def answer(self, body: Body) -> Completion:
        if body["model"] == "held":
            assert self.release.wait(WAIT_SECONDS)
            return Completion({"content": "Released."})
        time.sleep(CALL_SECONDS)
        usage = {"prompt_tokens": 2, "completion_tokens": 33 * CAP, "total_tokens": 33 * CAP + 2}
        return Completion({"content": "Hello."}, usage=usage)


UPSTREAM: Final = Upstream()
share(
    Site(
        "slow",
        model_handler(UPSTREAM.answer),
        [chat_model("slow"), chat_model("held")],
        [{"name": "holder", "model": "held"}],
        [tenant("capped", defaults={"tokens_per_minute": CAP}), tenant("crowd"), tenant("next-door")],
    )
)


def test_tokens_beyond_the_reservation_are_refused_for_a_minute_from_the_calls_end(gateway: Gateway) -> None:
    body = {"model": "slow", "messages": [{"role": "user", "content": "Hi!?"}], "max_tokens": 20}
    with gateway.client("capped-token") as client:
        admitted = client.post("/v1/chat/completions", json=body)
        refused = client.post("/v1/chat/completions", json=body)
    assert admitted.status_code == 200
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    # A bucket leaves the window at most 66 s after it begins. That of the call's start does so at most 66 - 12 s from now.
    assert int(refused.headers["Retry-After"]) > 66 - CALL_SECONDS


@dataclass
class Crowd:
    """The requests of one tenant, each of which stays open until it is closed."""

    client: httpx.Client
    opened: ExitStack

    def send(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """Send a request and wait for the status of its answer. Read the body only of an error."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.send(self.client.build_request(method, path, json=body, headers=sent), stream=True)
        if answer.is_success:
            self.opened.callback(answer.close)
        else:
            answer.read()
        return answer


@pytest.fixture
def crowd(gateway: Gateway) -> Iterator[Crowd]:
    with gateway.client("crowd-token") as client, ExitStack() as opened:
        yield Crowd(client, opened)


@pytest.fixture
def neighbour(gateway: Gateway) -> Iterator[Crowd]:
    with gateway.client("next-door-token") as client, ExitStack() as opened:
        yield Crowd(client, opened)


def test_all_ways_to_follow_a_stream_have_one_bound(crowd: Crowd, neighbour: Crowd) -> None:
    """Each way in turn is refused while the places are taken, and then takes the next free one."""
    session = crowd.send("POST", "/a1/agents/holder/sessions", {}).read()
    managed = crowd.send("POST", "/v1/managed-agents", {"name": "Held", "agent": "holder"})
    agent = json.loads(managed.read())["id"]
    chat = {"message_id": "m1", "messages": [{"role": "user", "content": "Wait."}]}
    messages = f"/a1/agents/holder/sessions/{json.loads(session)['id']}/messages"
    ways: dict[str, tuple[str, str, object]] = {
        "repeated message": ("POST", CHAT, chat),
        "repeated key": ("POST", messages, {"message": "Wait.", "stream": True}),
        "repeated key of a managed agent": ("POST", f"/v1/managed-agents/{agent}/messages", {"content": "Wait.", "stream": True}),
        "chat": ("GET", f"{CHAT}/m1", None),
    }

    def follow(way: str, by: Crowd = crowd) -> httpx.Response:
        return by.send(*ways[way], Idempotency_Key="one")

    try:
        for way in ("repeated message", "repeated key", "repeated key of a managed agent"):
            assert follow(way).status_code == 200, "the first request runs the turn and follows nothing"
        (run,) = crowd.client.get(f"/v1/managed-agents/{agent}/runs").json()["runs"]
        ways["run"] = ("GET", f"/v1/managed-agents/{agent}/runs/{run['id']}/stream", None)
        assert neighbour.send("POST", CHAT, chat).status_code == 200
        places = [follow("chat") for _ in range(FOLLOWERS)]
        assert [place.status_code for place in places] == [200] * FOLLOWERS
        for way in ways:
            refused = follow(way)
            assert refused.status_code == 429, way
            error = refused.json()["error"]
            assert error["code"] == "rate_limited"
            assert error["details"] == {"of": "tenant", "limit": "followers", "in_use": FOLLOWERS, "allowed": FOLLOWERS}
            assert refused.headers["Retry-After"] == "1"
            assert crowd.client.head(f"{CHAT}/m1").status_code == 200, "a HEAD follows nothing"
            places.pop(0).close()
            places.append(take_place(follow, way))
        assert follow("chat", neighbour).status_code == 200
    finally:
        UPSTREAM.release.set()


def take_place(follow: Callable[[str], httpx.Response], way: str) -> httpx.Response:
    """Follow as soon as the gateway has noticed that another follower has left."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (answer := follow(way)).status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer.status_code == 200, way
    return answer
