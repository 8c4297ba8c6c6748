"""What a call probably takes, before anybody has counted."""

from spass.calls.estimate import expected_usage
from spass.core.messages import Image, Message, Role, TokenUsage
from spass.llm.types import ChatRequest


def test_a_picture_counts_as_a_picture_and_not_as_its_bytes() -> None:
    text = Message(Role.USER, "a" * 400)
    parts = (text.content, Image("data:image/png;base64," + "A" * 4_000_000), Image("https://example.com/cat.png"))
    pictured = Message(Role.USER, text.content, parts=parts)
    assert expected_usage(ChatRequest("m", (text,), max_tokens=9)) == TokenUsage(100, 9)
    assert expected_usage(ChatRequest("m", (pictured,), max_tokens=9)) == TokenUsage(2100, 9)
