"""The banner tells whoever has just started the gateway what is there and what is not."""

from pathlib import Path

import pytest

from local.banner import banner
from local.home import ROOT, Home
from local.models import choose
from spass.tenancy.config import GatewayConfig, load_gateway_config


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    file = tmp_path / "gateway.yaml"
    shipped = (ROOT / "gateway.yaml").read_text().split("\ntenants:")[0]
    file.write_text(f"{shipped}\ntenants:\n  - {{id: acme}}\n  - {{id: demo}}\n  - {{id: zeta}}\n")
    config: GatewayConfig = load_gateway_config(file)
    choice = choose(config, ollama=None, standin_url="http://127.0.0.1:4999/v1")
    bucket = "http://127.0.0.1:4999/spass-local"
    return banner("http://127.0.0.1:3000", config, choice, Home(tmp_path), bucket, ["gateway.yaml:3: something"])


def test_it_names_the_laptops_tenants_with_their_tokens_and_the_operators_own(shown: str) -> None:
    assert "  tenant  demo  tokens  demo-token, demo-admin-token\n" in shown
    assert "  tenant  other token   other-token\n" in shown
    assert "of gateway.yaml, with tokens that only you know: acme, zeta\n" in shown


def test_it_says_who_answers_and_for_what_nobody_does(shown: str) -> None:
    assert "stand-in answers for claude-opus-4.7, " in shown
    assert "embedded embeds with all-minilm-l6-v2\n" in shown
    assert "nobody answers for text-embedding-3-small: set OPENAI_API_KEY\n" in shown


def test_it_says_how_a_file_is_put(shown: str) -> None:
    assert "    curl -T notes.md http://127.0.0.1:4999/spass-local/uploads/demo/my-index/\n" in shown


def test_it_ends_with_notes_of_what_has_no_effect(shown: str) -> None:
    assert "  note: gateway.yaml:3: something\n" in shown


def test_what_it_says_to_try_names_a_model_that_there_is(shown: str, tmp_path: Path) -> None:
    assert '"model": "llama-4-scout"' in shown
    file = tmp_path / "other.yaml"
    file.write_text(
        "models:\n  - {name: mini, kind: embedding, dimensions: 3, context_window: 16}\n"
        "  - {name: small, context_window: 1000}\n  - {name: large, context_window: 1000}\ndefaults: {embedding_model: mini}\n"
    )
    config = load_gateway_config(file)
    choice = choose(config, ollama=None, standin_url="http://127.0.0.1:4999/v1")
    other = banner("http://127.0.0.1:3000", config, choice, Home(tmp_path), "http://127.0.0.1:4999/spass-local", [])
    assert '"model": "small"' in other
    assert "llama-4-scout" not in other
