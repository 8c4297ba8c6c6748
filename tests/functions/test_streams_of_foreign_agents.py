"""Streams of foreign agents in sessions: they match the grammar and equal the blocking Reply. The SDKs are stand-ins."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.functions.gateway import Gateway, Reply
from tests.stream_grammar import answer_text, collect_reply, comparable_reply, of_type, read_events
from tests.unit.sandbox.foreign.stand_ins import StandIns

CODE = {
    "openhands": """conversation.call("terminal", '{"command": "ls"}', "a.txt"); conversation.say("Done.")""",
    "claude_code": """return [call("a", "Bash", {command: "ls"}), result("a", "a.txt"), end("Done.", {total_cost_usd: 0})]""",
}


@pytest.fixture
def machine(gateway: Gateway, stand_ins: StandIns) -> Gateway:
    for kind in CODE:
        file = gateway.services.settings.agents / f"with-{kind.replace('_', '-')}.yaml"
        file.write_text(f"name: {file.stem}\nmodel: small\nkind: {kind}\nworkspace: {stand_ins.workspace}\n")
    return gateway


def send(gateway: Gateway, kind: str, route: str, *, stream: bool) -> Reply:
    agent = f"with-{kind.replace('_', '-')}"
    path, body = f"/a1/agents/{agent}", {"message": CODE[kind], "stream": stream}
    if route == "c1" and stream:
        chat = {"message_id": "m1", "messages": [{"role": "user", "content": CODE[kind]}]}
        return gateway.send("POST", f"/c1/agents/{agent}/chat", body=chat)
    if route == "chat":
        return gateway.send("POST", f"{path}/chat", body=body)
    session = gateway.send("POST", f"{path}/sessions").json["id"]
    return gateway.send("POST", f"{path}/sessions/{session}/messages", body=body)


def without_price(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Reply without the cost that the stand-in reports: it adds up over the runs of a session."""
    return {**reply, "metadata": {name: value for name, value in reply["metadata"].items() if name != "cost_usd"}}


@pytest.mark.parametrize("route", ["chat", "messages", "c1"])
@pytest.mark.parametrize("kind", CODE)
def test_a_stream_equals_the_blocking_reply_and_no_token_has_code(machine: Gateway, kind: str, route: str) -> None:
    blocking = send(machine, kind, route, stream=False)
    assert blocking.status == 200, blocking.text
    events = read_events(send(machine, kind, route, stream=True))
    assert without_price(collect_reply(events)) == without_price(comparable_reply(blocking.json))
    assert answer_text(events) == "".join(token["content"] for token in of_type(events, "token")) == "Done."
    (call,) = of_type(events, "tool_call")
    assert (call["args"], call["result"], call["ok"]) == ({"command": "ls"}, {"output": "a.txt"}, True)
