"""Pictures in a chat: from the body to the model, or back to the caller with the reason."""

import pytest

from spass.core.messages import Image, Json, Message, Role
from spass.llm.errors import BackendUnsupported
from tests.functions.gateway import Gateway

PNG = "data:image/png;base64,iVBORw0KGgo="


def chat(*parts: Json) -> dict[str, Json]:
    return {"model": "small", "messages": [{"role": "user", "content": parts}]}


def picture(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("url", [PNG, "https://example.com/cat.png"])
def test_a_picture_reaches_the_model_where_it_stood(gateway: Gateway, url: str, stream: bool) -> None:
    body = {**chat({"type": "text", "text": "What is"}, picture(url), {"type": "text", "text": "this?"}), "stream": stream}
    assert gateway.send("POST", "/v1/chat/completions", body=body).status == 200
    expected = Message(Role.USER, "What is\nthis?", parts=("What is", Image(url, "low"), "this?"))
    assert gateway.model.requests[-1].messages[-1] == expected


def test_what_is_no_picture_is_named_without_showing_it(gateway: Gateway) -> None:
    reply = gateway.send("POST", "/v1/chat/completions", body=chat(picture("ftp://secret")))
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "messages.0.content")
    assert "secret" not in reply.text


@pytest.mark.parametrize("stream", [True, False])
def test_what_no_backend_has_is_the_callers_to_change(gateway: Gateway, stream: bool) -> None:
    gateway.model.failure = BackendUnsupported("Bedrock does not fetch pictures. Send them as data: URLs.", param="messages")
    reply = gateway.send("POST", "/v1/chat/completions", body={**chat(picture("https://example.com/a")), "stream": stream})
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "messages")
    assert "data: URLs" in reply.json["error"]["message"]
