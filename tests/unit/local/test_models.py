"""The choice of models on this machine: a provider with a key, a running Ollama, or the stand-in."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from local.home import ROOT
from local.models import ModelChoice, choose_models, overlay
from local.processes import answers
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.identity import Tokens
from spass.testing.http_server import HttpAnswer, serve

URL = "http://127.0.0.1:4999/v1"
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY", "SPASS_OLLAMA_MODEL")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> GatewayConfig:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    return load_gateway_config(ROOT / "gateway.yaml")


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write_and_load(config: GatewayConfig, choice: ModelChoice, folder: Path) -> GatewayConfig:
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(overlay(config, choice)))
    return load_gateway_config(file)


def test_without_keys_the_stand_in_answers_for_every_chat_model(config: GatewayConfig, tmp_path: Path) -> None:
    choice = choose_models(config, servers={}, standin_url=URL)
    assert set(choice.by_model.values()) == {"stand-in"}
    assert set(choice.by_model) == {model.name for model in config.models if model.kind == "chat"}
    backends = {backend.name: backend for backend in write_and_load(config, choice, tmp_path).llm.backends}
    assert set(backends) == {"embedded", "stand-in"}
    assert backends["stand-in"].base_url == URL


def test_a_key_enables_the_models_of_its_provider_only(
    config: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    choice = choose_models(config, servers={}, standin_url=URL)
    assert choice.by_model["claude-opus-4.7"] == "anthropic"
    assert choice.by_model["llama-4-scout"] == "stand-in"
    assert choice.needs_standin
    assert "a-key" not in yaml.safe_dump(overlay(config, choice))
    write_and_load(config, choice, tmp_path)


def test_the_laptops_tenants_are_added_to_the_operators(config: GatewayConfig, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((ROOT / "gateway.yaml").read_text().split("\ntenants:")[0] + "\ntenants:\n  - {id: acme}\n  - {id: demo}\n")
    mine = load_gateway_config(file)
    served = write_and_load(mine, choose_models(mine, servers={}, standin_url=URL), tmp_path)
    assert [tenant.id for tenant in served.tenants] == ["demo", "other", "acme"]
    assert [token.admin for token in served.tenants[0].tokens] == [True, False]


def test_the_operators_settings_hold_for_a_tenant_named_like_the_laptops(config: GatewayConfig, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    shipped = (ROOT / "gateway.yaml").read_text().split("\ntenants:")[0]
    file.write_text(f"{shipped}\ntenants:\n  - {{id: demo, defaults: {{compact_keep_last_n: 3}}}}\n")
    mine = load_gateway_config(file)
    served = write_and_load(mine, choose_models(mine, servers={}, standin_url=URL), tmp_path)
    demo = next(tenant for tenant in served.tenants if tenant.id == "demo")
    assert (demo.defaults.compact_keep_last_n, len(demo.tokens)) == (3, 2)


@pytest.mark.parametrize("name", ["mine", "demo", "demo-admin"])
def test_a_tenant_of_both_files_has_the_tokens_of_both(config: GatewayConfig, tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine.yaml"
    shipped = (ROOT / "gateway.yaml").read_text().split("\ntenants:")[0]
    mine = f"{{id: {name}, sha256: {sha256('a-secret')}, allowed_models: [llama-4-scout]}}"
    file.write_text(f"{shipped}\ntenants:\n  - {{id: demo, tokens: [{mine}]}}\n")
    operators = load_gateway_config(file)
    served = write_and_load(operators, choose_models(operators, servers={}, standin_url=URL), tmp_path)
    (own,) = operators.tenants[0].tokens
    assert own in served.tenants[0].tokens
    tokens = Tokens(served)
    for token in ("a-secret", "demo-token"):
        assert (tokens.identify(token).tenant, tokens.identify(token).admin) == ("demo", False)
    assert tokens.identify("demo-admin-token").admin


def test_a_laptop_token_in_the_operators_file_belongs_to_its_tenant_there(config: GatewayConfig, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    shipped = (ROOT / "gateway.yaml").read_text().split("\ntenants:")[0]
    file.write_text(f"{shipped}\ntenants:\n  - {{id: acme, tokens: [{{id: app, sha256: {sha256('demo-token')}}}]}}\n")
    operators = load_gateway_config(file)
    tokens = Tokens(write_and_load(operators, choose_models(operators, servers={}, standin_url=URL), tmp_path))
    assert (tokens.identify("demo-token").tenant, tokens.identify("demo-admin-token").tenant) == ("acme", "demo")


def test_a_server_whose_page_does_not_end_answers() -> None:
    end = threading.Event()

    def page() -> Iterator[bytes]:
        yield b"<html>"
        end.wait()

    with serve(lambda _: HttpAnswer(page())) as url:
        try:
            assert answers(url, timeout=2.0)
        finally:
            end.set()


def test_offline_only_the_stand_in_answers(config: GatewayConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    choice = choose_models(config, servers={}, standin_url=URL, offline=True)
    assert set(choice.by_model.values()) == {"stand-in"}
    assert {backend.name for backend in choice.backends} == {"embedded", "stand-in"}


def test_a_models_backend_is_the_first_by_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "llm:\n  backends:\n    - {provider: xai, name: last, priority: 2}\n    - {provider: xai, name: first}\n"
        "    - {provider: xai, name: second}\n    - {provider: embedded}\nmodels:\n  - {name: grok-4, context_window: 1000}\n"
        "  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}\n"
    )
    monkeypatch.setenv("XAI_API_KEY", "a-key")
    assert choose_models(load_gateway_config(file), servers={}, standin_url=URL).by_model == {"grok-4": "first"}


def test_bedrock_is_used_only_with_an_api_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "operators.yaml"
    file.write_text(
        """
llm:
  backends:
    - {name: signed, provider: bedrock, base_url: "http://127.0.0.1:9", supported_models: [small]}
    - {name: keyed, provider: bedrock, api_key_env: BEDROCK_KEY, supported_models: [large]}
models:
  - {name: small, context_window: 9}
  - {name: large, context_window: 9}
  - {name: e, kind: embedding, dimensions: 9, context_window: 9}
defaults: {embedding_model: e}
"""
    )
    monkeypatch.setenv("BEDROCK_KEY", "a-key")
    monkeypatch.setattr("local.models.answers", lambda *_, **__: True)  # Bedrock answers, but refuses a request without a key
    choice = choose_models(load_gateway_config(file), servers={}, standin_url=URL)
    assert choice.by_model == {"small": "stand-in", "large": "keyed"}


def test_a_model_without_a_backend_is_listed_with_the_key_that_it_needs(
    config: GatewayConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choose_models(config, servers={}, standin_url=URL)
    assert choice.unanswered == {"text-embedding-3-small": ("OPENAI_API_KEY",)}
    assert choice.embeddings == {"all-minilm-l6-v2": "embedded"}
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    assert choose_models(config, servers={}, standin_url=URL).unanswered == {}
