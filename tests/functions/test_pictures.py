"""Pictures in a chat: they reach the model, or the request is refused with the reason."""

import pytest

from spass.core.messages import Image, Json, Message, Role
from spass.models.errors import BackendUnsupported
from tests.functions.gateway import Gateway

PNG = "data:image/png;base64,iVBORw0KGgo="


def chat(*parts: Json) -> dict[str, Json]:
    return {"model": "small", "messages": [{"role": "user", "content": parts}]}


def picture(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("url", [PNG, "https://example.com/cat.png"])
def test_a_picture_reaches_the_model_in_its_place(gateway: Gateway, url: str, stream: bool) -> None:
    body = {**chat({"type": "text", "text": "What is"}, picture(url), {"type": "text", "text": "this?"}), "stream": stream}
    assert gateway.send("POST", "/v1/chat/completions", body=body).status == 200
    expected = Message(Role.USER, "What is\nthis?", parts=("What is", Image(url, "low"), "this?"))
    assert gateway.model.requests[-1].messages[-1] == expected


def test_a_bad_picture_is_located_and_its_address_is_not_repeated(gateway: Gateway) -> None:
    reply = gateway.send("POST", "/v1/chat/completions", body=chat(picture("ftp://secret")))
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "messages.0.content")
    assert "secret" not in reply.text


@pytest.mark.parametrize("stream", [True, False])
def test_an_unsupported_picture_is_an_invalid_request(gateway: Gateway, stream: bool) -> None:
    gateway.model.failure = BackendUnsupported("Bedrock does not fetch pictures. Send them as data: URLs.", param="messages")
    reply = gateway.send("POST", "/v1/chat/completions", body={**chat(picture("https://example.com/a")), "stream": stream})
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", "messages")
    assert "data: URLs" in reply.json["error"]["message"]
