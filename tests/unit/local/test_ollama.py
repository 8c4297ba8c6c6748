"""Each Ollama is asked at its own address, serves what its backend says, and never answers for a model as another one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from local.home import ROOT
from local.models import ModelChoice, choose_models, overlay
from local.ollama import Found, find
from spass.llm.backends import serves
from spass.tenancy.config import BackendConfig, GatewayConfig, load_gateway_config
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve

CLOUDS: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY")
USUAL: Final = "http://localhost:11434"

TWO: Final = """
llm:
  backends:
    - {name: desk, provider: ollama, base_url: "http://desk:11434", supported_models: [small], model_names: {small: "qwen3:4b"}}
    - {name: rack, provider: ollama, base_url: "http://rack:11434/v1", supported_models: [large, vectors]}
    - {name: cloud, provider: openai, api_key_env: CLOUD_KEY, supported_models: [secret]}
    - {provider: embedded}
models:
  - {name: small, context_window: 1000}
  - {name: large, context_window: 1000}
  - {name: secret, context_window: 1000}
  - {name: vectors, kind: embedding, dimensions: 768, context_window: 10}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
"""
EVERYTHING: Final = ("qwen3:4b", "small:latest", "large:latest", "secret:latest", "vectors:latest")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CLOUDS, "CLOUD_KEY", "OLLAMA_BASE_URL", "SPASS_OLLAMA_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shipped() -> GatewayConfig:
    return load_gateway_config(ROOT / "gateway.yaml")


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[[str], GatewayConfig]:
    def load(text: str) -> GatewayConfig:
        file = tmp_path / "gateway.yaml"
        file.write_text(text)
        return load_gateway_config(file)

    return load


def choice_of(config: GatewayConfig, found: Found, folder: Path) -> tuple[ModelChoice, Mapping[str, BackendConfig]]:
    """Return the choice, and the backends by name as the file that it writes has them."""
    choice = choose_models(config, found=found, standin_url="http://127.0.0.1:4999/v1")
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(overlay(config, choice)))
    return choice, {backend.name: backend for backend in load_gateway_config(file).llm.backends}


ConfigOf = Callable[[str], GatewayConfig]


def test_two_backends_serve_each_its_own_models_under_ollamas_names(config_of: ConfigOf, tmp_path: Path) -> None:
    found = {"http://desk:11434": EVERYTHING, "http://rack:11434": EVERYTHING}
    choice, served = choice_of(config_of(TWO), found, tmp_path)
    assert choice.by_model == {"small": "desk", "large": "rack", "secret": "stand-in"}
    assert choice.embeddings["vectors"] == "rack"
    assert served["desk"].model_names == {"small": "qwen3:4b"}
    assert served["rack"].model_names == {"large": "large:latest", "vectors": "vectors:latest"}
    assert (served["desk"].base_url, served["rack"].base_url) == ("http://desk:11434", "http://rack:11434")


@pytest.mark.parametrize(("there", "absent", "its_model"), [("desk", "rack", "large"), ("rack", "desk", "small")])
def test_a_backend_that_does_not_answer_is_dropped_alone(
    config_of: ConfigOf, tmp_path: Path, there: str, absent: str, its_model: str
) -> None:
    choice, served = choice_of(config_of(TWO), {f"http://{there}:11434": EVERYTHING}, tmp_path)
    assert there in served
    assert choice.passed_over[absent] == f"no Ollama answers at http://{absent}:11434"
    assert choice.by_model[its_model] == "stand-in"


def test_no_ollama_answers_for_a_model_that_another_backend_lists(config_of: ConfigOf, tmp_path: Path) -> None:
    text = TWO.replace("supported_models: [large, vectors]", "timeout: 9")
    choice, served = choice_of(config_of(text), {"http://rack:11434": EVERYTHING}, tmp_path)
    assert choice.by_model == {"small": "stand-in", "large": "rack", "secret": "stand-in"}
    assert set(served["rack"].supported_models) == {"large", "vectors"}


def test_a_model_that_ollama_lacks_is_not_answered_by_another_one_of_its_own(shipped: GatewayConfig, tmp_path: Path) -> None:
    choice, served = choice_of(shipped, {USUAL: ["llama3.2:latest", "nomic-embed-text:latest"]}, tmp_path)
    assert set(choice.by_model.values()) == {"stand-in"}
    assert "ollama" not in served
    assert choice.passed_over["ollama"] == f"{USUAL} lacks llama4:scout: run `ollama pull llama4:scout`"
    assert choice.ollama_models == ["llama3.2:latest"]


@pytest.mark.parametrize("keys", [(), *((key,) for key in CLOUDS), CLOUDS], ids=lambda keys: "+".join(keys) or "none")
@pytest.mark.parametrize(("installed", "answers"), [([], "stand-in"), (["llama4:scout"], "ollama")])
def test_no_key_sends_llama_4_scout_to_a_cloud(
    shipped: GatewayConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: Sequence[str],
    installed: Sequence[str],
    answers: str,
) -> None:
    for key in keys:
        monkeypatch.setenv(key, "a-key")
    choice, _ = choice_of(shipped, {USUAL: installed}, tmp_path)
    assert choice.serving("llama-4-scout") == (answers,)
    assert choice.serving(str(shipped.defaults.compact_summary_model)) == (answers,)


def test_in_the_shipped_file_only_ollama_serves_llama_4_scout(shipped: GatewayConfig) -> None:
    """Deployed, nothing but the file decides."""
    assert {backend.provider for backend in shipped.llm.backends if serves(backend, "llama-4-scout")} == {"ollama"}


def test_the_model_that_the_operator_names_takes_the_stand_ins_place(
    shipped: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    choice, served = choice_of(shipped, {USUAL: ["other:latest", "llama3.2:latest"]}, tmp_path)
    assert not choice.needs_standin
    assert (choice.by_model["llama-4-scout"], choice.by_model["claude-opus-4.7"]) == ("ollama", "anthropic")
    assert served["ollama"].model_names["llama-4-scout"] == "llama3.2:latest"
    assert choice.substitutes["grok-4"] == "llama3.2:latest"


def test_a_named_model_that_no_ollama_has_stands_in_for_nothing(
    shipped: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    choice, _ = choice_of(shipped, {USUAL: ["other:latest"]}, tmp_path)
    assert set(choice.by_model.values()) == {"stand-in"}


def test_a_named_model_is_sent_to_the_ollama_that_has_it(
    config_of: ConfigOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "special")
    found = {"http://desk:11434": ["qwen3:4b"], "http://rack:11434": ["special:latest"]}
    choice, _ = choice_of(config_of(TWO), found, tmp_path)
    assert choice.by_model == {"small": "desk", "large": "rack", "secret": "rack"}


def test_an_ollama_that_no_backend_names_serves_the_catalogues_models_it_has(config_of: ConfigOf, tmp_path: Path) -> None:
    text = "".join(line for line in TWO.splitlines(keepends=True) if "provider: ollama" not in line)
    choice, served = choice_of(config_of(text), {USUAL: EVERYTHING}, tmp_path)
    assert choice.by_model == {"small": "ollama", "large": "ollama", "secret": "stand-in"}
    assert served["ollama"].base_url == USUAL


def test_an_ollama_behind_openais_protocol_keeps_its_name_and_its_models(
    config_of: ConfigOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(line for line in TWO.splitlines(keepends=True) if "provider: ollama" not in line)
    monkeypatch.setenv("CLOUD_KEY", "a-key")
    choice, _ = choice_of(config_of(text.replace("name: cloud", "name: ollama")), {USUAL: EVERYTHING}, tmp_path)
    assert choice.by_model == {"small": "ollama-here", "large": "ollama-here", "secret": "ollama"}


@pytest.fixture
def servers() -> Iterator[Callable[[Sequence[str], str | None], str]]:
    """Start an Ollama that has these models, and wants this key if any. Returns its address."""
    with ExitStack() as stack:

        def start(models: Sequence[str], key: str | None = None) -> str:
            def answer(request: HttpRequest) -> HttpAnswer:
                known = request.path == "/api/tags" and (key is None or request.headers["Authorization"] == f"Bearer {key}")
                return json_answer({"models": [{"name": name} for name in models]}, 200 if known else 401)

            return stack.enter_context(serve(answer))

        yield start


Servers = Callable[..., str]


def test_each_backend_is_asked_at_its_own_address(config_of: ConfigOf, servers: Servers) -> None:
    desk, rack = servers(["qwen3:4b"]), servers(["large"])
    config = config_of(TWO.replace("http://desk:11434", desk).replace("http://rack:11434", rack))
    assert find(config) == {desk: ("qwen3:4b",), rack: ("large",)}


def test_one_that_does_not_answer_or_wants_another_key_is_left_out(
    config_of: ConfigOf, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = servers(["large"], "a-key")
    text = TWO.replace("http://desk:11434", "http://127.0.0.1:9").replace("http://rack:11434/v1", rack)
    text = text.replace("name: rack,", "name: rack, api_key_env: RACK_KEY,")
    for key, found in ((None, {}), ("wrong", {}), ("a-key", {rack: ("large",)})):
        monkeypatch.setenv("RACK_KEY", key) if key else monkeypatch.delenv("RACK_KEY", raising=False)
        assert find(config_of(text)) == found


def test_the_environment_says_where_a_backend_without_an_address_is_asked(
    shipped: GatewayConfig, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = servers(["llama4:scout"])
    monkeypatch.setenv("OLLAMA_BASE_URL", f"{here}/")
    found = find(shipped)
    choice, served = choice_of(shipped, found, tmp_path)
    assert (choice.by_model["llama-4-scout"], served["ollama"].base_url) == ("ollama", here)
