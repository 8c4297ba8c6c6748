"""The body of a message to an agent."""

import pytest
from pydantic import ValidationError

from spass.agents.spec import MAX_MESSAGE_BYTES, MessageBody


@pytest.mark.parametrize("message", ["Hallo", "Grüße 🙂", "x" * MAX_MESSAGE_BYTES, "line\nline\ttab"])
def test_a_message_is_text(message: str) -> None:
    assert MessageBody(message=message).message == message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message": ""},
        {"message": "\n"},
        {"message": None},
        {"message": 3},
        {"message": ["Hallo"]},
        {"message": "half \ud800"},
        {"message": "nul \0"},
        {"message": "ü" * MAX_MESSAGE_BYTES},
        {"message": "Hallo", "model": "x"},
    ],
)
def test_an_invalid_message_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MessageBody.model_validate(body)
