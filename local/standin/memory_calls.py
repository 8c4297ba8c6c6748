"""What the stand-in stores in the memory of an operator, and what it looks for there."""

import re
from typing import Any, Final

from local.standin.answers import is_sure
from local.standin.conversation import Conversation

_ORDER: Final = re.compile(
    r"^\W*(?:bitte\s+|please\s+)?(?:remember|note|store|write down|keep in mind|merke? dir|notiere?|speichere?)\b"
    r"(?P<where>[^:.?!]{0,60}?)(?::|\bthat\b|\bdass\b|,\s*dass\b)\s*(?P<content>.+)",
    re.IGNORECASE | re.DOTALL,
)
_KEY: Final = re.compile(r"\b(?:under the key|unter dem Schlüssel)\s+[\"'„“]?(?P<key>[\w.-]{1,128})", re.IGNORECASE)


def store(conversation: Conversation) -> dict[str, Any] | None:
    """Return the arguments of ``memory_store`` if the message is an order to remember something."""
    order = _ORDER.match(conversation.question_text)
    if order is None:
        return None
    key = _KEY.search(order["where"])
    content = order["content"].strip()
    return {"content": content[:1].upper() + content[1:], **({"key": key["key"]} if key else {})}


def search(conversation: Conversation) -> dict[str, Any] | None:
    """Return the arguments of ``memory_search`` if the message is a question that the conversation does not answer."""
    if not conversation.is_question or is_sure(conversation):
        return None
    return {"query": " ".join(conversation.question_text.split())[:500]}
