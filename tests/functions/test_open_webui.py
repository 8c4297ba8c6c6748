"""Open WebUI with the settings of docs/open-webui.md: its chats, its background tasks, and the user in both.

The bodies are those of its routers ``openai`` and ``tasks``; the headers are those of its ``utils/headers.py``.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.functions.gateway import Gateway, Reply

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "open-webui.md").read_text(encoding="utf-8")
USER: Final = "0b8f2f0e-6f3b-4c1e-9d55-2a8a7c1f3e11"
CHAT: Final[dict[str, Any]] = {
    "stream": True,
    "model": "agent/plain",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    "stream_options": {"include_usage": True},
}
TITLE: Final[dict[str, Any]] = {
    "model": "small",
    "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title with an emoji."}],
    "stream": False,
    "max_completion_tokens": 1000,
}


def headers_of_its_users() -> dict[str, str]:
    """Return the headers with which Open WebUI describes a user, named as the page says."""
    names = {"NAME": "X-OpenWebUI-User-Name", "ID": "X-OpenWebUI-User-Id"}
    names |= {"EMAIL": "X-OpenWebUI-User-Email", "ROLE": "X-OpenWebUI-User-Role"}
    names |= dict(re.findall(r"FORWARD_USER_INFO_HEADER_USER_(\w+)=(\S+)", PAGE))
    assert "ENABLE_FORWARD_USER_INFO_HEADERS=true" in PAGE
    return {names["NAME"]: "Ada%20L", names["ID"]: USER, names["EMAIL"]: "ada@example.com", names["ROLE"]: "user"}


def ask(gateway: Gateway, body: object) -> Reply:
    return gateway.send("POST", "/v1/chat/completions", user=None, headers=headers_of_its_users(), body=body)


def test_its_list_of_models_has_models_and_agents(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/v1/models", user=None, headers=headers_of_its_users())
    assert {"small", "agent/plain"} <= {model["id"] for model in reply.json["data"]}


@pytest.mark.parametrize("body", [CHAT, TITLE], ids=["chat", "title"])
def test_a_call_has_an_answer_and_belongs_to_its_user(gateway: Gateway, body: dict[str, Any]) -> None:
    reply = ask(gateway, body)
    assert reply.status == 200, reply.text
    if body["stream"]:
        *_, last, done = re.findall(r"data: (.+)", reply.text)
        assert done == "[DONE]"
        assert json.loads(last)["usage"]["total_tokens"] > 0
    else:
        assert reply.json["choices"][0]["message"]["content"]
    usage = gateway.send("GET", "/v1/usage?group_by=user", token="demo-admin-token", user=None).json["usage"]
    assert [row["key"] for row in usage] == [USER]
