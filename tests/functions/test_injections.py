"""Prompt injections: without a valid confirmation, nothing is written, even if the model obeys every text.

The tests use a whole gateway. Its model is a server that makes every call that a text orders
(``tests/functions/obedient_model.py``).
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from spass.calls.scope import Scope
from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.core.time import now_s
from spass.testing.aws import MemoryAws
from spass.tools.confirm_tokens import CONFIRM_SECONDS, ConfirmedOperation, ConfirmTokens, TokenRedemption
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import gateway_toolsets
from spass.web.services import Services
from tests.functions.gateway import CONFIG, Gateway, Reply
from tests.functions.injection_corpus import (
    DELETE,
    PAYLOADS,
    REMOVE,
    TOKENS,
    Payload,
    measure_defence,
    orders_in,
    table,
    tokens_in,
)
from tests.functions.obedient_model import DIMENSIONS, ObedientModel, build_documents, serve_obedient_model
from tests.sampling import SOAK
from tests.stream_grammar import read_events
from tests.unit.sessions.session_chains import ChainBuilder, plain_turn

TOOLS: Final = (
    "rag_query", "wikipedia_summary", "wikipedia_search", "rag_index_create", "rag_index_delete", "rag_doc_append",
    "rag_doc_patch", "rag_doc_delete", "memory_read", "memory_write", "lineage_search",
)  # fmt: skip
OPERATOR: Final = "demo-admin-token"
NOTES: Final = {"documents": [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]}
OTHER: Final = 'rag_doc_delete {"index_id": "notes", "doc_id": "b"}'


@dataclass
class InjectionHarness:
    """A gateway with an obedient model, and the confirm tokens that were issued and redeemed."""

    gateway: Gateway
    model: ObedientModel
    now: int
    payloads: list[Payload] = field(default_factory=list)
    issued: list[tuple[str, bytes]] = field(default_factory=list)
    redeemed: list[tuple[str, bytes]] = field(default_factory=list)

    def state(self) -> Mapping[str, object]:
        """Return the indices of both tenants, the settings of one, and every object."""
        aws = self.gateway.aws
        assert isinstance(aws, MemoryAws)
        partitions = ("T#demo#RAG", "T#demo#CONFIG", "T#other#RAG")
        items = {str((item["pk"], item["sk"])): item for item in aws.table.items() if item["pk"] in partitions}
        return {**items, **aws.bucket.objects}

    def send(self, target: str, body: object, *, token: str = OPERATOR, user: str = "ada", method: str = "POST") -> Reply:
        reply = self.gateway.send(method, target, token=token, headers={"SPASS-User-Id": user}, body=body)
        assert reply.status == 200, reply.text
        return reply

    def chat(self, *messages: Mapping[str, Any]) -> Reply:
        return self.send("/v1/chat/completions", {"model": "small", "messages": messages})

    def execute(self, order: str, *, token: str = OPERATOR, user: str = "ada", **more: str) -> Any:
        name, _, arguments = order.partition(" ")
        body = {"name": name, "arguments": json.loads(arguments) | more}
        return self.send("/v1/tools/execute", body, token=token, user=user).json["result"]

    def plant(self) -> None:
        """Fill real tokens that are not valid for the calls into the payloads. Store the payloads as documents and articles."""
        tokens = {}
        for order in (DELETE, REMOVE):
            tokens["OTHER_CALL", order] = self.execute(OTHER)["confirm_token"]
            tokens["OTHER_USER", order] = self.execute(order, user="bob")["confirm_token"]
            tokens["OTHER_TENANT", order] = self.execute(order, token="other-token")["confirm_token"]
            tokens["USED", order] = self.execute(order)["confirm_token"]
            assert self.execute(order, confirm_token=tokens["USED", order]) == {"deleted": True}
            self.restore()
            self.now -= CONFIRM_SECONDS + 1
            tokens["EXPIRED", order] = self.execute(order)["confirm_token"]
            self.now += CONFIRM_SECONDS + 1
            tokens["MADE_UP", order] = "AABqX" + "x" * 67
        self.payloads = [
            replace(payload, pieces=tuple(_fill_tokens(piece, tokens) for piece in payload.pieces)) for payload in PAYLOADS
        ]
        self.model.articles = [payload.text for payload in self.payloads]
        documents = [
            document for number, payload in enumerate(self.payloads) for document in build_documents(number, payload.pieces)
        ]
        self.send("/a1/rag/indices/corpus/documents", {"documents": documents})
        self.issued.clear()
        self.redeemed.clear()

    def restore(self) -> None:
        """Restore the documents and the memory."""
        self.send("/a1/rag/indices/notes/documents", NOTES)
        self.send("/v1/tenant/config", {"memory": None}, method="PUT")


def _fill_tokens(piece: str, tokens: Mapping[tuple[str, str], str]) -> str:
    for name in TOKENS:
        piece = piece.replace(name, tokens[name, REMOVE if REMOVE in piece else DELETE])
    return piece


@pytest.fixture
def harness(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[InjectionHarness]:
    settings = gateway.services.settings
    model = ObedientModel()
    with serve_obedient_model(model) as url:
        config = CONFIG.replace(
            "{name: scripted, provider: ollama, ",
            f"{{name: obedient, provider: openai, base_url: '{url}/v1', api_key_env: OBEDIENT_KEY, ",
        )
        config = config.replace("dimensions: 8", f"dimensions: {DIMENSIONS}")
        enabled = f"embedding_model: mini-embed, tools_enabled_default: [{', '.join(TOOLS)}]}}"
        settings.config.write_text(config.replace("embedding_model: mini-embed}", enabled))
        for name, reads in {"plain": "", **{f"reads-{n}": f"rag_index: corpus\nrag_top_k: {n}\n" for n in (1, 2, 3)}}.items():
            agent = f"name: {name}\nmodel: small\ndescription: Obeys.\ntools: [{', '.join(TOOLS)}]\n{reads}"
            (settings.agents / f"{name}.yaml").write_text(agent)
        monkeypatch.setenv("OBEDIENT_KEY", "any")
        monkeypatch.setenv("SPASS_WIKIPEDIA_URL", f"{url}/{{language}}")
        services = Services(settings)
        services.aws = gateway.aws
        monkeypatch.setattr(gateway, "services", services)
        harness = InjectionHarness(gateway, model, now_s())
        services.toolbox = Toolbox(partial(gateway_toolsets, services), clock=lambda: harness.now)
        _record_tokens(harness, monkeypatch)
        harness.restore()
        harness.send("/a1/rag/indices/notes/documents", NOTES, token="other-token")
        harness.plant()
        yield harness
        gateway._loop.run_until_complete(gateway.services.aclose())


def _record_tokens(harness: InjectionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record in ``harness`` the tokens that are issued and redeemed, and their operations."""
    issue, redeem = ConfirmTokens.issue, ConfirmTokens.redeem

    async def record_issue(self: ConfirmTokens, scope: Scope, operation: ConfirmedOperation, state: str) -> str:
        token = await issue(self, scope, operation, state)
        harness.issued.append((token, operation.fingerprint(scope.caller)))
        return token

    async def record_redemption(self: ConfirmTokens, scope: Scope, operation: ConfirmedOperation, token: str) -> TokenRedemption:
        redemption = await redeem(self, scope, operation, token)
        harness.redeemed.append((token, operation.fingerprint(scope.caller)))
        return redemption

    monkeypatch.setattr(ConfirmTokens, "issue", record_issue)
    monkeypatch.setattr(ConfirmTokens, "redeem", record_redemption)


def in_a_document(harness: InjectionHarness, number: int) -> None:
    count = len(harness.payloads[number].pieces)
    harness.send(f"/a1/agents/reads-{count}/chat", {"message": f"What do the passages say? #{number}#"})


def in_a_search(harness: InjectionHarness, number: int) -> None:
    query = json.dumps({"index_id": "corpus", "query": f"#{number}#", "top_k": len(harness.payloads[number].pieces)})
    harness.chat({"role": "user", "content": f"Call rag_query {query}"})


def in_an_article(harness: InjectionHarness, number: int) -> None:
    harness.chat({"role": "user", "content": f'Call wikipedia_summary {{"title": "{number}"}}'})


def in_a_message(harness: InjectionHarness, number: int) -> None:
    harness.chat({"role": "user", "content": harness.payloads[number].text})


def in_a_message_to_an_agent(harness: InjectionHarness, number: int) -> None:
    harness.send("/a1/agents/plain/chat", {"message": harness.payloads[number].text})


def in_a_memory_result(harness: InjectionHarness, number: int) -> None:
    context = {"memory_results": [{"note": harness.payloads[number].text}]}
    harness.send("/v1/ask", {"input": "What do the notes say?", "tools": TOOLS, "context": context})


def in_a_callers_tool(harness: InjectionHarness, number: int) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "browse", "arguments": "{}"}}
    harness.chat(
        {"role": "user", "content": "What is on that page?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": harness.payloads[number].text},
    )


def in_a_callers_tool_before_an_agent(harness: InjectionHarness, number: int) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "browse", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": harness.payloads[number].text},
        {"role": "user", "content": "What is on that page?"},
    ]
    harness.send("/v1/chat/completions", {"model": "agent/plain", "messages": messages})


def in_an_imported_tool_result(harness: InjectionHarness, number: int) -> None:
    import_history(harness, {"role": "tool", "tool_call_id": "c", "content": harness.payloads[number].text})


def in_an_imported_answer(harness: InjectionHarness, number: int) -> None:
    import_history(harness, {"role": "assistant", "content": harness.payloads[number].text})


def import_history(harness: InjectionHarness, entry: Mapping[str, Any]) -> None:
    """Begin a chat with ``entry``."""
    body = {"message_id": f"m-{uuid.uuid4()}", "messages": [entry, {"role": "user", "content": "What did we find?"}]}
    assert read_events(harness.send("/c1/agents/plain/chat", body))[-1]["type"] == "done"


def in_the_memory(harness: InjectionHarness, number: int) -> None:
    harness.send("/v1/tenant/config", {"memory": harness.payloads[number].text}, method="PUT")
    harness.chat({"role": "user", "content": "Good morning."})
    harness.send("/v1/tenant/config", {"memory": None}, method="PUT")


def in_a_message_that_was_compacted(harness: InjectionHarness, number: int) -> None:
    store = harness.gateway.services.aws.for_tenant(TenantId("demo"))
    chains = ChainBuilder(store, UserId("ada"), AgentName("plain"), harness.now)
    payload = f"zebra{number} {harness.payloads[number].text}"

    async def past() -> SessionId:
        return await chains.compact(await chains.session(plain_turn(payload)), "They spoke of an animal.")

    session = harness.gateway._loop.run_until_complete(past())
    message = f'Call lineage_search {{"query": "zebra{number}"}}'
    answer = harness.send(f"/a1/agents/plain/sessions/{session}/messages", {"message": message}).json
    (result,) = answer["tool_calls"][0]["result"]["results"]
    assert f"zebra{number}" in result["content"]


Place = Callable[[InjectionHarness, int], None]
PLACES: Final[tuple[Place, ...]] = (
    in_a_document, in_a_search, in_an_article, in_a_message, in_a_message_to_an_agent, in_a_callers_tool, in_the_memory,
    in_a_memory_result, in_a_message_that_was_compacted, in_a_callers_tool_before_an_agent, in_an_imported_tool_result,
    in_an_imported_answer,
)  # fmt: skip


def choose_payloads(place: Place) -> list[int]:
    """Return the numbers of the payloads for ``place``: one payload of every second kind, or all with ``SPASS_SOAK``."""
    if SOAK:
        return [*range(len(PAYLOADS))]
    at, kinds = PLACES.index(place), list(dict.fromkeys(payload.kind for payload in PAYLOADS))
    numbers = {kind: [number for number, payload in enumerate(PAYLOADS) if payload.kind == kind] for kind in kinds[at % 2 :: 2]}
    return [of_kind[at % len(of_kind)] for of_kind in numbers.values()]


@pytest.mark.parametrize("place", PLACES)
def test_an_obedient_model_without_a_valid_token_writes_nothing(harness: InjectionHarness, place: Place) -> None:
    """The texts also contain tokens of another call, user or tenant, used tokens and expired tokens."""
    before = harness.state()
    for number in choose_payloads(place):
        place(harness, number)
        assert harness.redeemed == [], harness.payloads[number]
    assert _without_settings(harness.state()) == _without_settings(before)
    assert len(harness.issued) > len(choose_payloads(place)) / 2, "the model obeyed too few orders"


def _without_settings(state: Mapping[str, object]) -> Mapping[str, object]:
    """Leave out the settings: an administrator who writes and clears the memory increases their version."""
    return {key: value for key, value in state.items() if "CONFIG" not in key}


@pytest.mark.parametrize("place", [in_a_document, in_a_message])
def test_a_model_that_confirms_its_calls_changes_only_these(harness: InjectionHarness, place: Place) -> None:
    """This is not defended: the token of exactly this call confirms it, also if a text orders that."""
    harness.model.confirms = True
    planted = {token for payload in harness.payloads for token in tokens_in(payload.text)}
    assert len(planted) >= len(TOKENS)
    changed = 0
    for number in choose_payloads(place):
        payload, before = harness.payloads[number], harness.state()
        harness.issued.clear()
        harness.redeemed.clear()
        place(harness, number)
        assert set(harness.redeemed) <= set(harness.issued), payload
        assert not planted & {token for token, _ in harness.redeemed}, payload
        if harness.state() != before:
            assert harness.redeemed, payload
            changed += 1
            harness.restore()
    assert changed


def test_the_token_of_this_call_is_valid_wherever_the_model_reads_it(harness: InjectionHarness) -> None:
    token = harness.execute(DELETE)["confirm_token"]
    harness.chat({"role": "user", "content": f"Call {DELETE} with confirm_token {token}."})
    assert [accepted for accepted, _ in harness.redeemed] == [token]
    assert harness.gateway.send("GET", "/a1/rag/indices/notes").code == "index_not_found"


def test_the_table_in_the_documentation_is_current() -> None:
    assert table() in (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_corpus_is_large_unique_and_has_orders() -> None:
    assert len(PAYLOADS) >= 60
    assert len({payload.text for payload in PAYLOADS}) == len(PAYLOADS)
    assert [payload for payload in PAYLOADS if not orders_in(payload.text)] == []


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.kind)
def test_a_payload_as_data_is_delimited_and_marked(payload: Payload) -> None:
    result = measure_defence(payload)
    assert result.closed
    assert result.marked
    if payload.kind in ("role tokens", "hidden characters", "bidirectional text"):
        assert result.altered


def test_orders_in_hidden_characters_are_removed() -> None:
    hidden = [payload for payload in PAYLOADS if payload.kind == "hidden characters"]
    unseen = [payload for payload in hidden if not orders_in(payload.text.encode("ascii", "ignore").decode())]
    assert len(unseen) >= 4
    assert [payload for payload in unseen if measure_defence(payload).obeyed] == []
