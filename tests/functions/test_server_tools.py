"""The gateway's own tools in ``POST /v1/chat/completions``, through the route; and what a broken embedding server gets."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spass.calls.datamark import NOTE, remove_marks
from spass.core.messages import FinishReason, TokenUsage
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, ToolCallDelta, pack_rows
from tests.functions.gateway import CONFIG, Gateway, Reply, write_operators_files

ROOT = Path(__file__).parents[2]
NO_TOOLS = "defaults: {embedding_model: mini-embed}"
TOOLS = "defaults: {embedding_model: mini-embed, tools_enabled_default: [calculator, rag_query, rag_index_delete]}"
BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "6 * 7?"}]}


def call(name: str, **arguments: object) -> list[ChatDelta]:
    piece = ToolCallDelta(0, f"call_{name}", name, json.dumps(arguments))
    return [ChatDelta(tool_calls=(piece,)), ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=TokenUsage(10, 5))]


def say(text: str) -> list[ChatDelta]:
    return [ChatDelta(text, finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]


Turn = Sequence[ChatDelta] | Callable[[ChatRequest], Sequence[ChatDelta]]
Plan = Callable[[Sequence[Turn]], list[ChatRequest]]


@pytest.fixture
def plan(gateway: Gateway) -> Plan:
    """Switches tools on and makes the model say one thing after the other, which may depend on what it is asked; returns what it
    will have been asked."""
    gateway.services.settings.config.write_text(CONFIG.replace(NO_TOOLS, TOOLS))

    def planned(turns: Sequence[Turn]) -> list[ChatRequest]:
        asked: list[ChatRequest] = []

        def answer(request: ChatRequest, _: CallContext) -> Sequence[ChatDelta]:
            asked.append(request)
            turn = turns[len(asked) - 1]
            return turn(request) if callable(turn) else turn

        gateway.model.script = answer
        return asked

    return planned


def complete(gateway: Gateway, *, token: str = "demo-token", headers: dict[str, str] | None = None, **fields: object) -> Reply:
    reply = gateway.send("POST", "/v1/chat/completions", token=token, headers=headers, body=BODY | fields)
    assert reply.status == 200, reply.text
    return reply


def text_of(reply: Reply) -> Any:
    return reply.json["choices"][0]["message"]["content"]


def test_one_answer_one_bill(gateway: Gateway, plan: Plan) -> None:
    asked = plan([call("calculator", expression="6*7"), say("It is 42.")])
    reply = complete(gateway)
    assert text_of(reply) == "It is 42."
    assert json.loads(remove_marks(asked[1].messages[-1].content))["result"] == 42
    assert reply.headers["spass-cost-sub-calls"] == "2"
    assert reply.headers["spass-cost-usd"] == reply.json["usage"]["cost_details"]["usd"] == "0.00004"
    assert reply.json["usage"]["total_tokens"] == 30


def test_switched_off_by_the_header(gateway: Gateway, plan: Plan) -> None:
    asked = plan([say("Hm."), say("Hm.")])
    complete(gateway, headers={"SPASS-Augment": "server-tools=off"})
    complete(gateway, headers={"SPASS-Augment": "system-prompt=off, memory=off"})
    assert [len(request.tools) for request in asked] == [0, 3]


def test_what_a_tenant_stores_goes_into_its_chats_and_nowhere_else(gateway: Gateway, plan: Plan) -> None:
    asked = plan([say("Salve.")] * 5)
    stored = {"system_prompt": "Answer in Latin.", "memory": "The office is in Bonn.", "tools_enabled_default": ["memory_read"]}
    assert gateway.send("PUT", "/v1/tenant/config", token="demo-admin-token", body=stored).status == 200
    complete(gateway)
    complete(gateway, stream=True, headers={"SPASS-Augment": "system-prompt=off"})
    complete(gateway, headers={"SPASS-Augment": "memory=off, server-tools=off, system-prompt=off"})
    complete(gateway, token="other-token")
    assert gateway.send("POST", "/a1/agents/plain/chat", body={"message": "6 * 7?"}).status == 200
    words = [[remove_marks(message.content).partition("\n")[0][:16] for message in request.messages] for request in asked]
    notes, note = "Notes that were ", NOTE[:16]
    assert words == [
        ["Answer in Latin.", notes, "6 * 7?"],
        [note, notes, "6 * 7?"],
        ["6 * 7?"],
        ["6 * 7?"],
        ["Answer.", "6 * 7?"],
    ]
    assert [len(request.tools) for request in asked] == [1, 1, 0, 3, 0]


def test_knowledge_is_that_of_the_callers_tenant(gateway: Gateway, plan: Plan) -> None:
    documents = {"documents": [{"id": "a", "text": "alpha"}]}
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body=documents).status == 200
    query = call("rag_query", index_id="notes", query="alpha")
    asked = plan([query, say("Alpha."), query, say("Nothing.")])
    reply = complete(gateway)
    assert json.loads(remove_marks(asked[1].messages[-1].content))["results"][0]["text"] == "alpha"
    assert reply.headers["spass-cost-sub-calls"] == "3"  # two answers and an embedding
    complete(gateway, token="other-token")
    assert json.loads(remove_marks(asked[3].messages[-1].content))["error"]["code"] == "index_not_found"


@pytest.mark.parametrize("user", [{}, {"SPASS-User-Id": "ada"}], ids=["no user", "a user"])
def test_a_write_is_confirmed_in_two_steps_here_too(gateway: Gateway, plan: Plan, user: dict[str, str]) -> None:
    documents = {"documents": [{"id": "a", "text": "alpha"}]}
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body=documents).status == 200

    def confirming(request: ChatRequest) -> Sequence[ChatDelta]:
        told = json.loads(remove_marks(request.messages[-1].content))
        return call("rag_index_delete", index_id="notes", confirm_token=told["confirm_token"])

    asked = plan([call("rag_index_delete", index_id="notes"), confirming, say("Gone.")])
    assert text_of(complete(gateway, headers=user)) == "Gone."
    assert json.loads(remove_marks(asked[2].messages[-1].content)) == {"deleted": True}
    assert gateway.send("GET", "/a1/rag/indices/notes").code == "index_not_found"


def test_a_stream_is_kept_under_its_key_and_given_again_without_a_second_run(gateway: Gateway, plan: Plan) -> None:
    asked = plan([[ChatDelta("Let me see."), *call("calculator", expression="6*7")], say("It is 42.")])
    first, again = (complete(gateway, stream=True, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert again.headers["idempotency-replayed"] == "true"
    assert streamed(first) == streamed(again) == "Let me see.\n\nIt is 42."
    assert len(asked) == 2


def streamed(reply: Reply) -> str:
    *events, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert done == "[DONE]"
    chunks = map(json.loads, events)
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


_START = "import sys, functions.chat.completions; print('numpy' in sys.modules, 'spass.tools.toolbox' in sys.modules)"


@pytest.mark.parametrize(("tools", "made"), [(NO_TOOLS, "False False"), (TOOLS, "True True")], ids=["without", "with"])
def test_the_function_makes_the_tools_while_it_starts_and_only_where_there_are_some(
    tmp_path: Path, tools: str, made: str
) -> None:
    settings = write_operators_files(tmp_path)
    settings.config.write_text(CONFIG.replace(NO_TOOLS, tools))
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}",
        "PYTHONWARNINGS": "ignore",
        "AWS_LAMBDA_FUNCTION_NAME": "chat-completions",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SPASS_CONFIG": str(settings.config),
    }
    probe = subprocess.run([sys.executable, "-c", _START], cwd=ROOT, env=environment, capture_output=True, check=True, text=True)
    assert probe.stdout.splitlines()[-1] == made


BROKEN = {
    "not a number": lambda count: EmbeddingReply(pack_rows([[math.nan] * 8] * count), count, 8, TokenUsage(1)),
    "infinite": lambda count: EmbeddingReply(pack_rows([[math.inf] * 8] * count), count, 8, TokenUsage(1)),
    "one too few": lambda count: EmbeddingReply(pack_rows([[1.0] * 8] * (count - 1)), count - 1, 8, TokenUsage(1)),
    "too short": lambda count: EmbeddingReply(pack_rows([[1.0] * 7] * count), count, 7, TokenUsage(1)),
}


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_vectors_that_are_none_reach_no_caller(gateway: Gateway, broken: Callable[[int], EmbeddingReply], encoding: str) -> None:
    gateway.model.vectors = lambda request: broken(len(request.texts))
    body = {"model": "mini-embed", "input": ["a", "b"], "encoding_format": encoding}
    reply = gateway.send("POST", "/v1/embeddings", body=body)
    assert (reply.status, reply.code) == (502, "upstream_error")
