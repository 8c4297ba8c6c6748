"""Attack the cost accounting of a running gateway.

Its provider bills every request that it has read. Then it does not answer, answers in part, or reports false token counts. The
model ``given-up`` answers like a proxy whose own timeout has passed.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import httpx
import pytest

from spass.testing.http_server import HttpAnswer
from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import RETRIES, Gateway
from tests.e2e.sites import Site, chat_model, share, tenant, token

ANSWER: Final = "This is an answer of forty characters.  "
PIECES: Final = 8
PIECE_SECONDS: Final = 0.25
"""Seconds before each piece: less than ``TIMEOUT``, which all pieces together exceed."""

USAGES: Final[dict[str, object]] = {
    "empty": {},
    "zeros": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "total-alone": {"total_tokens": 30},
    "no-completion": {"prompt_tokens": 20},
    "zero-cost": {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0},
    "negative": {"prompt_tokens": -5, "completion_tokens": -7, "total_tokens": -12, "cost": -3},
    "absurd": {"prompt_tokens": 10**13, "completion_tokens": 10**15, "total_tokens": 10**16, "cost": 1e12},
    "no-numbers": {"prompt_tokens": "many", "completion_tokens": 1.5, "total_tokens": [], "cost": "NaN"},
    "no-object": "lots",
}
"""The usage that each model reports, by the name of the model."""
TIMEOUT: Final = 1.0
assert PIECE_SECONDS < TIMEOUT < PIECES * PIECE_SECONDS

BUDGETS: Final = {
    "hung": 5, "proxied": 5, "broken": 5, "embedder": None, "counted": None, "cheated": 3, "poor": 0, "spent": 1, "patient": None,
    "bounded": None, "unbounded": None,
}  # fmt: skip
"""Tenants and their monthly budgets in US dollars. Each test has its own tenants. All tokens are those of admins."""

CEILINGS: Final = {"bounded": {"monthly_budget_usd": 3}}
"""Limits that the admins of a tenant cannot lift."""

CHAT: Final = "/v1/chat/completions"
ATTEMPTS: Final = 1 + int(RETRIES["retries"])
TWO_DOLLARS: Final = 1000
"""Tokens of an answer that costs 2 US dollars, at 2000 US dollars per million."""


@dataclass
class BillingUpstream:
    """A provider that bills lost answers. ``billed`` counts the complete requests for each model."""

    billed: Counter[str] = field(default_factory=Counter)
    closed: threading.Event = field(default_factory=threading.Event)

    def answer(self, body: Body) -> Completion | HttpAnswer | None:
        model = body["model"]
        self.billed[model] += 1
        if model == "hangs":
            self.hang()
            return None
        if model == "given-up":
            return HttpAnswer(status=504)
        if model == "breaks-off":
            return HttpAnswer(b'{"choices": [', content_length=1000)
        content = PIECES * ANSWER if body.get("stream") else ANSWER
        pause = PIECE_SECONDS if model == "slow-spoken" else 0
        return Completion({"content": content}, usage=USAGES.get(model), pieces=[ANSWER] * PIECES, pause=pause)

    def embed(self, text: str) -> list[float]:
        self.billed["hangs-embed"] += 1
        self.hang()
        return []

    def hang(self) -> None:
        self.closed.wait(30)


UPSTREAM: Final = BillingUpstream()


def site() -> Site:
    names = ["hangs", "given-up", "breaks-off", "slow-spoken", *USAGES]
    priced = [chat_model(name, usd_per_mtok_in=0, usd_per_mtok_out=2000) for name in names]
    embedding = {"name": "hangs-embed", "kind": "embedding", "dimensions": 2, "context_window": 9000, "usd_per_mtok_in": 10**6}
    return Site(
        "billing",
        model_handler(UPSTREAM.answer, embed=UPSTREAM.embed),
        [*priced, embedding, {"name": "unhurried", "context_window": 100_000}],
        [{"name": "teller", "model": "slow-spoken"}],
        [
            tenant(
                name,
                token(f"{name}-token", admin=True),
                limits=CEILINGS.get(name, {}),
                defaults={} if budget is None else {"monthly_budget_usd": budget},
            )
            for name, budget in BUDGETS.items()
        ],
        [
            {"timeout": TIMEOUT, "supported_models": [*names, "hangs-embed"]},
            {"name": "unhurried", "supported_models": [], "model_names": {"unhurried": "slow-spoken"}},
        ],
    )


share(site())


@pytest.fixture(scope="module", autouse=True)
def upstream() -> Iterator[BillingUpstream]:
    yield UPSTREAM
    UPSTREAM.closed.set()


def ask(client: httpx.Client, model: str, **fields: object) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi!?"}], "max_tokens": TWO_DOLLARS, **fields}
    return client.post(CHAT, json=body)


def text_of(answer: httpx.Response) -> str:
    """Return the text of a blocking or streamed answer."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def audit(client: httpx.Client, answer: httpx.Response) -> Any:
    """Return the audit record of the only model call of a request."""
    tree = client.get(f"/v1/audit/{answer.headers['spass-request-id']}").json()
    (call,) = tree["calls"]
    return call


def total(client: httpx.Client) -> Any:
    return client.get("/v1/usage").json()["total"]


@pytest.mark.parametrize(
    ("model", "tenant", "attempts"),
    [("hangs", "hung", 1), ("given-up", "proxied", 1), ("breaks-off", "broken", 1 + RETRIES["retries"])],
)
def test_lost_answers_are_billed_until_the_budget_is_exceeded(
    gateway: Gateway, upstream: BillingUpstream, model: str, tenant: str, attempts: int
) -> None:
    with gateway.client(f"{tenant}-token") as client:
        answers = [ask(client, model) for _ in range(4)]
        codes = [answer.json()["error"]["code"] for answer in answers]
        admitted = codes.count("upstream_error")
        assert codes == ["upstream_error"] * admitted + ["budget_exceeded"] * (4 - admitted)
        assert upstream.billed[model] == admitted * attempts == 2
        for answer in answers[:admitted]:
            call = audit(client, answer)
            assert (call["attempts"], call["completion_tokens"]) == (attempts, attempts * TWO_DOLLARS)
            assert call["usage_estimated"] is True
            assert Decimal(call["cost_usd"]) == Decimal(answer.headers["spass-cost-usd"]) == 2 * attempts
        usage = total(client)
        assert usage["requests"] == admitted
        assert Decimal(usage["cost_usd"]) == 2 * admitted * attempts


def test_a_lost_embedding_is_billed(gateway: Gateway, upstream: BillingUpstream) -> None:
    with gateway.client("embedder-token") as client:
        answer = client.post("/v1/embeddings", json={"model": "hangs-embed", "input": ["x" * 400]})
        assert (answer.status_code, upstream.billed["hangs-embed"]) == (502, 1)
        call = audit(client, answer)
        assert (call["prompt_tokens"], call["usage_estimated"]) == (100, True)
        assert Decimal(total(client)["cost_usd"]) == Decimal(answer.headers["spass-cost-usd"]) == 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", USAGES)
def test_false_token_counts_are_replaced_by_estimates_and_the_answer_arrives(
    gateway: Gateway, upstream: BillingUpstream, model: str, stream: bool
) -> None:
    before = upstream.billed[model]
    with gateway.client("counted-token") as client:
        answer = ask(client, model, stream=stream)
        assert answer.status_code == 200, answer.text
        assert text_of(answer) == (PIECES * ANSWER if stream else ANSWER)
        assert upstream.billed[model] == before + 1
        call = audit(client, answer)
        completion_tokens = PIECES * len(ANSWER) // 4 if stream else len(ANSWER) // 4
        prompt_tokens = 20 if model == "no-completion" else 1
        assert (call["prompt_tokens"], call["completion_tokens"], call["usage_estimated"]) == (
            prompt_tokens,
            completion_tokens,
            True,
        )
        assert (Decimal(call["cost_usd"]), call["cost_source"]) == (completion_tokens * Decimal("0.002"), "catalog")


def test_answers_with_a_reported_usage_of_zero_still_use_up_the_budget(gateway: Gateway) -> None:
    with gateway.client("cheated-token") as client:
        codes = [ask(client, "zeros", max_tokens=1000, stream=True).status_code for _ in range(20)]
    assert codes[0] == 200
    assert codes[-1] == 429


def test_an_admin_cannot_spend_more_than_the_operators_ceiling(gateway: Gateway) -> None:
    """The tenant's admin raises and clears the budget and resets the usage between calls of 2 US dollars each."""

    def spend(client: httpx.Client, change: dict[str, object]) -> tuple[int, Any]:
        stored = client.put("/v1/tenant/config", json=change)
        assert client.delete("/v1/usage").json() == {"reset": True}
        return stored.status_code, ask(client, "zeros").json().get("error", {}).get("code")

    changes: list[dict[str, object]] = [
        {"tokens_per_minute": 10**9},
        {"monthly_budget_usd": 1000},
        {"monthly_budget_usd": 3},
        {"monthly_budget_usd": None},
        {"memory": "The budget is 1000 US dollars."},
    ]
    with gateway.client("bounded-token") as bounded, gateway.client("unbounded-token") as unbounded:
        assert ask(bounded, "hangs").status_code == 502  # billed with 2 US dollars
        answers = [spend(bounded, change) for change in changes]
        assert answers == [(status, "budget_exceeded") for status in (200, 403, 200, 200, 200)]
        assert bounded.get("/v1/tenant/config").json()["config"]["monthly_budget_usd"] == 3
        assert [spend(unbounded, change) for change in changes] == [(200, None)] * 5


@pytest.mark.parametrize("tenant", ["poor", "spent"])
def test_calls_without_costs_succeed_after_the_budget_is_spent(gateway: Gateway, tenant: str) -> None:
    with gateway.client(f"{tenant}-token") as client:
        if tenant == "spent":
            assert ask(client, "hangs").status_code == 502
        assert ask(client, "zeros").json()["error"]["code"] == "budget_exceeded"
        embedded = client.post("/v1/embeddings", json={"model": "all-minilm-l6-v2", "input": "Tea"})
        assert embedded.status_code == 200, embedded.text
        documents = [{"id": "tea", "text": "Tea is a drink."}]
        assert client.post("/a1/rag/indices/notes/documents", json={"documents": documents}).status_code == 200
        response = client.post("/a1/rag/indices/notes/query", json={"query": "What is tea?"})
        assert [result["id"] for result in response.json()["results"]] == ["tea"]
        assert ask(client, "zeros").json()["error"]["code"] == "budget_exceeded"


def test_the_timeout_ends_a_blocking_model_call_but_not_an_agents_streamed_one(gateway: Gateway) -> None:
    with gateway.client("patient-token") as client:
        reply = client.post("/a1/agents/teller/chat", json={"message": "Tell me."})
        assert reply.status_code == 200, reply.text
        assert reply.json()["message"]["content"] == PIECES * ANSWER
        assert ask(client, "slow-spoken").json()["error"]["code"] == "upstream_error", (
            "the timeout of the backend must end a blocking call"
        )
        assert ask(client, "unhurried").status_code == 200
