"""Server tools in ``POST /v1/chat/completions``, and embeddings of a broken server."""

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
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, pack_rows
from spass.testing.model import calls
from tests.functions.completion_chunks import chunks_of, text_of
from tests.functions.gateway import CONFIG, Gateway, Reply, write_operators_files

ROOT = Path(__file__).parents[2]
NO_TOOLS = "defaults: {embedding_model: mini-embed}"
TOOLS = "defaults: {embedding_model: mini-embed, tools_enabled_default: [calculator, rag_query, rag_index_delete]}"
BODY: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "6 * 7?"}]}


def call(name: str, **arguments: object) -> Sequence[ChatDelta]:
    return calls((name, arguments))


def say(text: str) -> list[ChatDelta]:
    return [ChatDelta(text, finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]


Turn = Sequence[ChatDelta] | Callable[[ChatRequest], Sequence[ChatDelta]]
Plan = Callable[[Sequence[Turn]], list[ChatRequest]]


@pytest.fixture
def plan(gateway: Gateway) -> Plan:
    """Return a function that scripts the turns of the model and returns the list of its requests. Server tools are on."""
    gateway.services.settings.config.write_text(CONFIG.replace(NO_TOOLS, TOOLS))

    def script_turns(turns: Sequence[Turn]) -> list[ChatRequest]:
        requests: list[ChatRequest] = []

        def answer(request: ChatRequest, _: CallContext) -> Sequence[ChatDelta]:
            requests.append(request)
            turn = turns[len(requests) - 1]
            return turn(request) if callable(turn) else turn

        gateway.model.script = answer
        return requests

    return script_turns


def complete(gateway: Gateway, *, token: str = "demo-token", headers: dict[str, str] | None = None, **fields: object) -> Reply:
    reply = gateway.send("POST", "/v1/chat/completions", token=token, headers=headers, body=BODY | fields)
    assert reply.status == 200, reply.text
    return reply


def answer_text(reply: Reply) -> Any:
    return reply.json["choices"][0]["message"]["content"]


def test_a_tool_call_and_the_answer_have_one_cost(gateway: Gateway, plan: Plan) -> None:
    requests = plan([call("calculator", expression="6*7"), say("It is 42.")])
    reply = complete(gateway)
    assert answer_text(reply) == "It is 42."
    assert json.loads(remove_marks(requests[1].messages[-1].content))["result"] == 42
    assert reply.headers["spass-cost-sub-calls"] == "2"
    assert reply.headers["spass-cost-usd"] == reply.json["usage"]["cost_details"]["usd"] == "0.00004"
    assert reply.json["usage"]["total_tokens"] == 30


def test_the_augment_header_switches_server_tools_off(gateway: Gateway, plan: Plan) -> None:
    requests = plan([say("Hm."), say("Hm.")])
    complete(gateway, headers={"SPASS-Augment": "server-tools=off"})
    complete(gateway, headers={"SPASS-Augment": "system-prompt=off, memory=off"})
    assert [len(request.tools) for request in requests] == [0, 3]


def test_prompt_and_memory_reach_only_the_tenants_chats(gateway: Gateway, plan: Plan) -> None:
    requests = plan([say("Salve.")] * 5)
    gateway.set_config(system_prompt="Answer in Latin.", memory="The office is in Bonn.", tools_enabled_default=["memory_read"])
    complete(gateway)
    complete(gateway, stream=True, headers={"SPASS-Augment": "system-prompt=off"})
    complete(gateway, headers={"SPASS-Augment": "memory=off, server-tools=off, system-prompt=off"})
    complete(gateway, token="other-token")
    assert gateway.send("POST", "/a1/agents/plain/chat", body={"message": "6 * 7?"}).status == 200
    words = [[remove_marks(message.content).partition("\n")[0][:16] for message in request.messages] for request in requests]
    notes, note = "Notes that were ", NOTE[:16]
    assert words == [
        ["Answer in Latin.", notes, "6 * 7?"],
        [note, notes, "6 * 7?"],
        ["6 * 7?"],
        ["6 * 7?"],
        ["Answer.", "6 * 7?"],
    ]
    assert [len(request.tools) for request in requests] == [1, 1, 0, 3, 0]


def test_a_tool_searches_only_the_indices_of_the_callers_tenant(gateway: Gateway, plan: Plan) -> None:
    gateway.put_documents(a="alpha")
    query = call("rag_query", index_id="notes", query="alpha")
    requests = plan([query, say("Alpha."), query, say("Nothing.")])
    reply = complete(gateway)
    assert json.loads(remove_marks(requests[1].messages[-1].content))["results"][0]["text"] == "alpha"
    assert reply.headers["spass-cost-sub-calls"] == "3"  # two answers and an embedding
    complete(gateway, token="other-token")
    assert json.loads(remove_marks(requests[3].messages[-1].content))["error"]["code"] == "index_not_found"


@pytest.mark.parametrize("user", [{}, {"SPASS-User-Id": "ada"}], ids=["no user", "a user"])
def test_a_write_in_a_chat_needs_two_steps(gateway: Gateway, plan: Plan, user: dict[str, str]) -> None:
    gateway.put_documents(a="alpha")

    def confirm(request: ChatRequest) -> Sequence[ChatDelta]:
        preview = json.loads(remove_marks(request.messages[-1].content))
        return call("rag_index_delete", index_id="notes", confirm_token=preview["confirm_token"])

    requests = plan([call("rag_index_delete", index_id="notes"), confirm, say("Gone.")])
    assert answer_text(complete(gateway, headers=user)) == "Gone."
    assert json.loads(remove_marks(requests[2].messages[-1].content)) == {"deleted": True}
    assert gateway.send("GET", "/a1/rag/indices/notes").code == "index_not_found"


def test_a_stream_with_server_tools_is_stored_and_replayed(gateway: Gateway, plan: Plan) -> None:
    requests = plan([[ChatDelta("Let me see."), *call("calculator", expression="6*7")], say("It is 42.")])
    first, replay = (complete(gateway, stream=True, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert replay.headers["idempotency-replayed"] == "true"
    assert text_of(chunks_of(first)) == text_of(chunks_of(replay)) == "Let me see.\n\nIt is 42."
    assert len(requests) == 2


_START = """
import sys, functions.chat.completions
print(*(name in sys.modules for name in ("numpy", "spass.tools.toolbox", "spass.agents.engine")))
"""


@pytest.mark.parametrize(
    ("tools", "imported"), [(NO_TOOLS, "False False False"), (TOOLS, "False True False")], ids=["without", "with"]
)
def test_the_function_imports_the_tools_at_its_start_if_there_are_any(tmp_path: Path, tools: str, imported: str) -> None:
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
    assert probe.stdout.splitlines()[-1] == imported


BROKEN = {
    "not a number": lambda count: EmbeddingReply(pack_rows([[math.nan] * 8] * count), count, 8, TokenUsage(1)),
    "infinite": lambda count: EmbeddingReply(pack_rows([[math.inf] * 8] * count), count, 8, TokenUsage(1)),
    "one too few": lambda count: EmbeddingReply(pack_rows([[1.0] * 8] * (count - 1)), count - 1, 8, TokenUsage(1)),
    "too short": lambda count: EmbeddingReply(pack_rows([[1.0] * 7] * count), count, 7, TokenUsage(1)),
}


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_malformed_vectors_are_an_upstream_error(
    gateway: Gateway, broken: Callable[[int], EmbeddingReply], encoding: str
) -> None:
    gateway.model.vectors = lambda request: broken(len(request.texts))
    body = {"model": "mini-embed", "input": ["a", "b"], "encoding_format": encoding}
    reply = gateway.send("POST", "/v1/embeddings", body=body)
    assert (reply.status, reply.code) == (502, "upstream_error")
