"""A new provider is one file and one line of the registry: this one stands in a folder of its own, and answers."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from spass.llm.providers import make_provider
from spass.llm.providers.http import Connection
from spass.llm.router import Router
from spass.tenancy.config import load_gateway_config
from spass.tenancy.providers import PROVIDERS
from tests.unit.llm.upstream import KEY, context, request

pytestmark = pytest.mark.anyio

FILE = """
from typing import ClassVar

from spass.core.messages import Json
from spass.llm.providers.openai_compatible import OpenAiCompatible
from spass.llm.types import ChatRequest


class Mistral(OpenAiCompatible):
    base_url: ClassVar[str] = "https://api.mistral.example/v1"
    lacks: ClassVar[frozenset[str]] = frozenset({"logit_bias"})

    def body(self, request: ChatRequest) -> dict[str, Json]:
        body = super().body(request)
        return {**body, "random_seed": body.pop("seed")} if "seed" in body else body
"""

GATEWAY = """
llm:
  backends:
    - {provider: mistral, api_key_env: M_KEY, model_names: {model-1: mistral-large}}
models:
  - {name: model-1, context_window: 1000}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
"""


async def test_a_new_provider_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "provider_of_tomorrow.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(PROVIDERS, "mistral", "provider_of_tomorrow:Mistral")
    asked: list[httpx.Request] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        asked.append(sent)
        return httpx.Response(200, json={"choices": [{"message": {"content": "Bonjour"}}]})

    whole = Connection.__init__

    def over_there(self: Connection, *given: object, **named: object) -> None:
        whole(self, *given, **{**named, "transport": httpx.MockTransport(answer)})  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "__init__", over_there)
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    config = load_gateway_config(tmp_path / "gateway.yaml")
    router = Router(config.llm, config.models, {"M_KEY": KEY}.get, provider_of=make_provider)
    deltas = [delta async for delta in router.chat(request(), context())]
    assert [delta.content for delta in deltas] == ["Bonjour"]
    assert str(asked[0].url) == "https://api.mistral.example/v1/chat/completions"
    assert asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(asked[0].content)["model"] == "mistral-large"
    del sys.modules["provider_of_tomorrow"]
