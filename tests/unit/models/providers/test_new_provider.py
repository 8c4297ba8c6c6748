"""The provider that ``docs/extending.md`` describes: one file and one line of the registry."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from spass.models import providers
from spass.models.backends import check_backend
from spass.models.provider_registry import PROVIDERS, ProviderEntry, make_provider
from spass.models.providers.http import Connection
from spass.models.router import Router
from spass.tenancy.config_file import load_gateway_config
from tests.unit.models.scripted_upstream import KEY, context, request

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "extending.md").read_text(encoding="utf-8")
DOCUMENT = PAGE.split("## Add a provider\n", 1)[1].split("\n## ", 1)[0]


async def test_a_new_provider_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (line,) = re.findall(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
    (gateway,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    (name, entry), *others = eval(f"{{{line}}}", {"ProviderEntry": ProviderEntry}).items()
    assert not others
    module = entry.class_path.partition(":")[0]
    assert f"`shared/{module.replace('.', '/')}.py`" in DOCUMENT
    (tmp_path / "mistral.py").write_text(file)
    monkeypatch.setattr(providers, "__path__", [*providers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(PROVIDERS, name, entry)
    requests: list[httpx.Request] = []

    def answer(upstream_request: httpx.Request) -> httpx.Response:
        requests.append(upstream_request)
        return httpx.Response(200, json={"choices": [{"message": {"content": "Bonjour"}}]})

    original_init = Connection.__init__

    def connect_to_mock(self: Connection, *arguments: object, **options: object) -> None:
        original_init(self, *arguments, **{**options, "transport": httpx.MockTransport(answer)})  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "__init__", connect_to_mock)
    (tmp_path / "gateway.yaml").write_text(gateway)
    config = load_gateway_config(tmp_path / "gateway.yaml", check_backend=check_backend)
    assert not config.warnings
    router = Router(config.llm, config.models, {"MISTRAL_API_KEY": KEY}.get, provider_of=make_provider)
    chat_request = replace(request(), model="mistral-large-latest", seed=7)
    deltas = [delta async for delta in router.chat(chat_request, context())]
    assert [delta.content for delta in deltas] == ["Bonjour"]
    assert str(requests[0].url) == "https://api.mistral.ai/v1/chat/completions"
    assert requests[0].headers["authorization"] == f"Bearer {KEY}"
    body = json.loads(requests[0].content)
    assert (body["model"], body["random_seed"]) == ("mistral-large-latest", 7)
    del sys.modules[module]
