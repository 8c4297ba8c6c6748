"""Operators of the test gateway: agents of the kind ``operative``, run over the routes that run them."""

import json
from collections.abc import Mapping
from typing import Any, Final

from spass.calls.datamark import remove_marks
from tests.functions.gateway import Gateway, Reply
from tests.stream_grammar import Event, of_type, parse_events

WATCH: Final = "/a1/agents/watch"
"""The agent of the operator ``watch``. The agents ``guard`` and ``tower`` share the operator ``shared``."""
_FILES: Final = {
    "watch": "name: watch\nkind: operative\nmodel: small\nsystem_prompt: Watch the harbour.\n"
    "tools: [memory_store, calculator, lineage_search]\n",
    "guard": "name: guard\nkind: operative\nmodel: small\nsystem_prompt: Guard it.\noperator_id: shared\n",
    "tower": "name: tower\nkind: operative\nmodel: small\nsystem_prompt: Look down.\noperator_id: shared\n"
    "tools: [lineage_search]\n",
}


def add_operators(gateway: Gateway, **files: str) -> Gateway:
    """Add the agents of operators, and more ``files``, to the gateway."""
    for name, text in {**_FILES, **files}.items():
        (gateway.services.settings.agents / f"{name}.yaml").write_text(text)
    return gateway


def chat(gateway: Gateway, message: str, agent: str = "watch", *, stream: bool = False, **more: Any) -> Reply:
    """Send ``message`` to /a1/agents/{agent}/chat."""
    body = {"message": message, "stream": stream} if stream else {"message": message}
    return gateway.send("POST", f"/a1/agents/{agent}/chat", body=body, **more)


def ask(gateway: Gateway, message: str, operator: str = "asked", *, kind: str = "operative", **more: Any) -> Reply:
    """Ask ``kind`` as the operator ``operator``."""
    body = {"input": message, "agent": kind, "params": {"operator_id": operator}, **more.pop("body", {})}
    return gateway.send("POST", "/v1/ask", body=body, headers={"SPASS-User-Id": "ada"}, **more)


def stream_chat(gateway: Gateway, message_id: str, message: str, agent: str = "watch", **more: Any) -> Reply:
    """Send ``message`` to /c1/agents/{agent}/chat."""
    body = {"message_id": message_id, "messages": [{"role": "user", "content": message}], **more.pop("body", {})}
    return gateway.send("POST", f"/c1/agents/{agent}/chat", body=body, **more)


def done_of(reply: Reply) -> Event:
    """Return the last event of a stream that succeeded."""
    assert reply.status == 200, reply.text
    (done,) = of_type(parse_events(reply.content), "done")
    return done


def states(gateway: Gateway) -> dict[str, Mapping[str, Any]]:
    """Return the items of all operators' states by ``<user>#<operator>``."""
    items = [item for item in gateway.items() if item["sk"] == "STATE"]
    return {str(item["pk"]).partition("#OPER#")[2]: item for item in items}


def state_of(gateway: Gateway, operator: str, user: str = "ada") -> Any:
    """Return the state of an operator as parsed JSON."""
    return json.loads(str(states(gateway)[f"{user}#{operator}"]["state"]))


def session_items(gateway: Gateway) -> list[str]:
    """Return the ids of all sessions that are not deleted."""
    return [str(item["id"]) for item in gateway.items() if item["sk"] == "HEAD" and "user" in item and "deleted_at" not in item]


def history(gateway: Gateway, session: str, agent: str = "watch", **more: Any) -> list[tuple[str, str]]:
    """Return role and text of the messages of a session."""
    page = gateway.send("GET", f"/a1/agents/{agent}/sessions/{session}/messages", **more)
    assert page.status == 200, page.text
    return [(message["role"], message["content"]) for message in page.json["messages"]]


def shown(gateway: Gateway) -> list[str]:
    """Return the texts of the model's last request, without what marks them as data."""
    return [remove_marks(message.content) for message in gateway.model.requests[-1].messages]
