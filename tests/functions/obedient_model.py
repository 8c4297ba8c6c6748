"""A model that does whatever stands in what it is sent, behind OpenAI's wire format on a loopback port, beside a Wikipedia whose
articles are the corpus."""

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
    """It makes every call that any text orders, without a token and with each token found in any text. Tokens that its own calls
    were answered with it uses only if it ``confirms`` what it does."""

    confirms: bool = False
    articles: Sequence[str] = ()
    orders: set[InjectedOrder] = field(default_factory=set)

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        texts = [message["content"] for message in body["messages"] if isinstance(message.get("content"), str)]
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        orders = orders_in("\n".join(texts))
        self.orders.update(orders)
        tokens = tokens_in("\n".join(texts)) - (set() if self.confirms else set(_answered_tokens(body["messages"])))
        wanted = [
            (order.name, {**order.values, **confirmation})
            for order in orders
            if order.name in offered
            for confirmation in ({}, *({"confirm_token": token} for token in sorted(tokens)))
        ]
        made = [(name, json.loads(arguments)) for name, arguments in _calls(body["messages"])]
        calls = [call for call in wanted if call not in made][:32]
        if calls and body.get("tool_choice") != "none":
            return {"role": "assistant", "content": None, "tool_calls": [_call(len(made) + n, *c) for n, c in enumerate(calls)]}
        said = [order.values["text"] for order in orders if order.name == "say"]
        return {"role": "assistant", "content": " ".join(["Done.", *said])}


def _answered_tokens(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tokens that the gateway gave this very conversation."""
    for message in messages:
        try:
            answer = json.loads(remove_marks(message["content"])) if message["role"] == "tool" else None
        except ValueError:
            continue
        if isinstance(answer, dict) and answer.get("confirm_required") is True and "preview" in answer:
            yield answer["confirm_token"]


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"], call["function"]["arguments"]


def _call(number: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _vector(text: str) -> list[float]:
    """Texts with the same number are alike and like no other."""
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

    with serve_model(lambda body: Completion(model.answer(body), usage=None), embed=_vector, get=article) as url:
        yield url


def numbered(number: int, pieces: Sequence[str]) -> list[dict[str, str]]:
    """A payload's documents."""
    return [{"id": f"p{number}-{part}", "text": f"{piece} #{number}#"} for part, piece in enumerate(pieces)]
