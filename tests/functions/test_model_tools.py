"""The tools ``think`` and ``llm`` over HTTP: a call of ``llm`` has the rights and the cost of its caller."""

from spass.models.errors import BackendUnavailable
from spass.models.types import CallContext, ChatRequest
from spass.testing.model import Answer, calls
from tests.functions.gateway import Gateway, Reply
from tests.stream_grammar import read_events


def execute(gateway: Gateway, name: str, arguments: object, token: str = "demo-token", **headers: str) -> Reply:
    return gateway.send("POST", "/v1/tools/execute", token=token, body={"name": name, "arguments": arguments}, headers=headers)


def test_think_answers_with_an_empty_result(gateway: Gateway) -> None:
    reply = execute(gateway, "think", {"thought": "The invoice is from March."})
    assert (reply.status, reply.json["result"], gateway.model.requests) == (200, {}, [])
    refused = execute(gateway, "think", {"thought": " "})
    assert (refused.status, refused.code, refused.json["error"]["param"]) == (400, "invalid_request", "arguments.thought")


def test_llm_answers_with_the_text_of_the_first_allowed_model_and_its_cost(gateway: Gateway) -> None:
    gateway.model.script = "<think>Well.</think>Seven."
    reply = execute(gateway, "llm", {"prompt": "How many?"})
    assert (reply.status, reply.json["result"]) == (200, {"text": "Seven."})
    assert [request.model for request in gateway.model.requests] == ["small"]
    assert reply.headers["spass-cost-sub-calls"] == "1"
    assert float(reply.headers["spass-cost-usd"]) > 0


def test_llm_refuses_the_models_that_its_caller_may_not_use(gateway: Gateway) -> None:
    for name, code in (("dear", "model_not_allowed"), ("mini-embed", "invalid_arguments"), ("nobody", "model_not_found")):
        reply = execute(gateway, "llm", {"prompt": "How many?", "model": name})
        assert reply.status == 200
        assert reply.json["result"]["error"]["code"] == code
        assert "use one of: small." in reply.json["result"]["error"]["message"]
    assert execute(gateway, "llm", {"prompt": "x", "model": "dear"}, token="demo-admin-token").json["result"]["text"]
    assert [request.model for request in gateway.model.requests] == ["dear"]


def test_a_repeated_llm_call_with_one_key_asks_the_model_once(gateway: Gateway) -> None:
    first, second = (execute(gateway, "llm", {"prompt": "How many?"}, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.json == second.json
    assert len(gateway.model.requests) == 1


def test_a_failing_model_is_a_status_as_on_the_routes_of_models(gateway: Gateway) -> None:
    gateway.model.failure = BackendUnavailable("The server is being restarted.")
    reply = execute(gateway, "llm", {"prompt": "How many?"})
    assert (reply.status, reply.code) == (502, "upstream_error")


def ask_twice(request: ChatRequest, _: CallContext) -> Answer:
    """Call the tool ``llm`` at first, then answer. The call of the tool itself offers no tools."""
    if not request.tools:
        return "<think>Well.</think>Seven."
    if any(message.tool_call_id for message in request.messages):
        return "It is seven."
    return calls(("llm", {"prompt": "How many?"}))


def test_an_agent_asks_its_own_model_and_the_stream_tells_it(gateway: Gateway) -> None:
    gateway.model.script = ask_twice
    body = {"input": "How many?", "model": "dear", "tools": ["llm", "calculator"], "stream": True}
    reply = gateway.send("POST", "/v1/ask", token="demo-admin-token", body=body)
    events = read_events(reply)
    assert [request.model for request in gateway.model.requests] == ["dear"] * 3
    (progress,) = (event for event in events if "progress" in event)
    assert (progress["status"], progress["tool_call_id"], progress["progress"]) == ("executing", "call_0", "Asking dear.")
    (call,) = (event for event in events if event["type"] == "tool_call")
    assert (call["tool"], call["ok"], call["result"]) == ("llm", True, {"text": "Seven."})
    assert events.index(progress) < events.index(call)
    assert "".join(event["content"] for event in events if event["type"] == "token") == "It is seven."
    (usage,) = (event for event in events if event["type"] == "usage")
    assert usage["cost"]["sub_calls"] == 3
    assert "Well." not in reply.text
