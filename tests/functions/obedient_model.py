"""A model that obeys every text it reads, and a Wikipedia whose articles are the corpus, as one HTTP server on a loopback port.

The model speaks OpenAI's wire format.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from spass.calls.datamark import remove_marks
from spass.testing.model_server import Completion, serve_model
from tests.functions.injection_corpus import InjectedOrder, orders_in, tokens_in

DIMENSIONS: Final = 128
_NUMBER: Final = re.compile(r"#(\d+)#")


@dataclass
class ObedientModel:
    """A model that makes every call that a text orders, without a token and with each token in the texts.

    It uses the tokens in the answers to its own calls only if ``confirms`` is True.
    """

    confirms: bool = False
    articles: Sequence[str] = ()
    orders: set[InjectedOrder] = field(default_factory=set)

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        texts = [message["content"] for message in body["messages"] if isinstance(message.get("content"), str)]
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        orders = orders_in("\n".join(texts))
        self.orders.update(orders)
        tokens = tokens_in("\n".join(texts)) - (set() if self.confirms else set(_read_own_tokens(body["messages"])))
        ordered_calls = [
            (order.name, {**order.values, **confirmation})
            for order in orders
            if order.name in offered
            for confirmation in ({}, *({"confirm_token": token} for token in sorted(tokens)))
        ]
        earlier_calls = [(name, json.loads(arguments)) for name, arguments in _read_calls(body["messages"])]
        calls = [call for call in ordered_calls if call not in earlier_calls][:32]
        if calls and body.get("tool_choice") != "none":
            tool_calls = [_tool_call(number, *call) for number, call in enumerate(calls, len(earlier_calls))]
            return {"role": "assistant", "content": None, "tool_calls": tool_calls}
        texts = [order.values["text"] for order in orders if order.name == "say"]
        return {"role": "assistant", "content": " ".join(["Done.", *texts])}


def _read_own_tokens(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the tokens in the gateway's answers to the calls of this conversation."""
    for message in messages:
        try:
            answer = json.loads(remove_marks(message["content"])) if message["role"] == "tool" else None
        except ValueError:
            continue
        if isinstance(answer, dict) and answer.get("confirm_required") is True and "preview" in answer:
            yield answer["confirm_token"]


def _read_calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"], call["function"]["arguments"]


def _tool_call(number: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _embed(text: str) -> list[float]:
    """Return a vector. Texts with the same number have the same vector. Texts without a number share one vector."""
    number = _NUMBER.search(text)
    row = [0.01] * DIMENSIONS
    row[int(number[1]) if number else DIMENSIONS - 1] = 1.0
    return row


@contextmanager
def serve_obedient_model(model: ObedientModel) -> Iterator[str]:
    """Serve ``model``, and the articles under every other path. Yield the URL."""

    def article(path: str) -> object:
        titles = parse_qs(urlsplit(path).query).get("titles", ())
        pages = [{"pageid": 1, "title": title, "extract": model.articles[int(title)]} for title in titles]
        return {"query": {"pages": pages}}

    with serve_model(lambda body: Completion(model.answer(body), usage=None), embed=_embed, get=article) as url:
        yield url


def build_documents(number: int, pieces: Sequence[str]) -> list[dict[str, str]]:
    """Return the documents of a payload."""
    return [{"id": f"p{number}-{part}", "text": f"{piece} #{number}#"} for part, piece in enumerate(pieces)]
