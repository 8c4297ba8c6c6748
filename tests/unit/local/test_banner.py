"""The banner tells whoever has just started the gateway what is there and what is not."""

from pathlib import Path

import pytest

from local.banner import banner
from local.home import ROOT, Home
from local.models import choose_models
from local.ollama import Found
from spass.tenancy.config import GatewayConfig, load_gateway_config


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY", "OLLAMA_BASE_URL", "SPASS_OLLAMA_MODEL"):
        monkeypatch.delenv(key, raising=False)
    file = tmp_path / "operators.yaml"
    shipped = (ROOT / "gateway.yaml").read_text().split("\ntenants:")[0]
    file.write_text(f"{shipped}\ntenants:\n  - {{id: acme}}\n  - {{id: demo}}\n  - {{id: zeta}}\n")
    config: GatewayConfig = load_gateway_config(file)
    choice = choose_models(config, found={}, standin_url="http://127.0.0.1:4999/v1")
    bucket = "http://127.0.0.1:4999/spass-local"
    return banner("http://127.0.0.1:3000", file, config, choice, Home(tmp_path), bucket, ["gateway.yaml:3: something"])


def test_it_names_the_laptops_tenants_with_their_tokens_and_the_operators_own(shown: str) -> None:
    assert "  tenant  demo  tokens  demo-token, demo-admin-token\n" in shown
    assert "  tenant  other token   other-token\n" in shown
    assert "of operators.yaml, with tokens that only you know: acme, zeta\n" in shown


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
    choice = choose_models(config, found={}, standin_url="http://127.0.0.1:4999/v1")
    other = banner("http://127.0.0.1:3000", file, config, choice, Home(tmp_path), "http://127.0.0.1:4999/spass-local", [])
    assert '"model": "small"' in other
    assert "llama-4-scout" not in other


def test_it_names_the_file_that_it_serves(shown: str, tmp_path: Path) -> None:
    assert f"  configuration: {tmp_path / 'operators.yaml'}\n" in shown


def test_it_says_which_backends_are_passed_over_and_why(shown: str) -> None:
    told = [*(f"{name} (no {name.upper()}_API_KEY)" for name in ("anthropic", "openai", "xai"))]
    told += ["ollama (no Ollama answers at http://localhost:11434)", "groq (no GROQ_API_KEY)"]
    assert f"  passed over: {', '.join(told)}\n" in shown


MANY = """
llm:
  strategy: round-robin
  backends:
    - {name: one, provider: openai, api_key_env: ONE_KEY, supported_models: [scout, small]}
    - {name: two, provider: openai, api_key_env: TWO_KEY, supported_models: [scout]}
    - {name: signed, provider: bedrock, supported_models: [scout]}
    - {name: ollama, provider: ollama}
    - {name: embedded, provider: embedded}
models:
  - {name: scout, context_window: 1000}
  - {name: small, context_window: 1000}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
"""


def shown_of(text: str, folder: Path, *, offline: bool = False, found: Found | None = None) -> str:
    file = folder / "many.yaml"
    file.write_text(text)
    config = load_gateway_config(file)
    choice = choose_models(config, found=found or {}, standin_url="http://127.0.0.1:4999/v1", offline=offline)
    return banner("http://127.0.0.1:3000", file, config, choice, Home(folder), "http://127.0.0.1:4999/spass-local", [])


def test_it_names_every_backend_of_a_model_and_the_strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONE_KEY", "a-key")
    monkeypatch.setenv("TWO_KEY", "a-key")
    shown = shown_of(MANY, tmp_path)
    assert "  one, two (round-robin) answer for scout\n" in shown
    assert "  one answers for small\n" in shown
    assert (
        "  passed over: signed (no api_key_env: here it needs a Bedrock API key), ollama (no Ollama answers at http://localhost:11434)\n"
        in shown
    )


def test_offline_it_says_so_of_all_at_once(tmp_path: Path) -> None:
    assert "  passed over: one, two, signed, ollama (--offline)\n" in shown_of(MANY, tmp_path, offline=True)


def test_of_many_it_names_the_first_alone(tmp_path: Path) -> None:
    models = "".join(f"  - {{name: m{number}, context_window: 1000}}\n" for number in range(20))
    assert "  stand-in answers for scout, small, m0, m1, m2, m3, m4, m5, 14 more\n" in shown_of(MANY + models, tmp_path)


HERE = {"http://localhost:11434": ["nomic-embed-text:latest", "llama3.2:latest"]}


def test_it_says_how_an_ollama_takes_the_stand_ins_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPASS_OLLAMA_MODEL", raising=False)
    shown = shown_of(MANY, tmp_path, found=HERE)
    assert "  stand-in answers for scout, small\n" in shown
    assert "  Ollama has llama3.2:latest: SPASS_OLLAMA_MODEL=llama3.2:latest lets it take the stand-in's place\n" in shown


def test_it_says_which_model_answers_in_place_of_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    shown = shown_of(MANY, tmp_path, found=HERE)
    assert "  ollama answers for scout, small with llama3.2:latest (SPASS_OLLAMA_MODEL)\n" in shown
    assert "stand-in" not in shown


@pytest.mark.parametrize(
    ("found", "reason"),
    [(HERE, "Ollama at http://localhost:11434 has no model phi3"), ({}, "no Ollama answers at http://localhost:11434")],
)
def test_it_says_that_no_ollama_has_the_model_that_should_take_the_stand_ins_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Found, reason: str
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "phi3")
    monkeypatch.delenv("OLLAMA_BASE_URL", raising=False)
    assert f"  SPASS_OLLAMA_MODEL=phi3 has no effect: {reason}\n" in shown_of(MANY, tmp_path, found=found)
