"""Each Ollama server serves the models of its backend, under their own names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from local.home import ROOT
from local.models import ModelChoice, choose_models, overlay
from local.ollama import Servers, find_servers
from spass.models.backends import serves
from spass.tenancy.config import BackendConfig, GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve

CLOUDS: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY")
DEFAULT_ADDRESS: Final = "http://localhost:11434"

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


def choice_of(config: GatewayConfig, servers: Servers, folder: Path) -> tuple[ModelChoice, Mapping[str, BackendConfig]]:
    """Return the choice, and the backends by name as the file that it writes has them."""
    choice = choose_models(config, servers=servers, standin_url="http://127.0.0.1:4999/v1")
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(overlay(config, choice)))
    return choice, {backend.name: backend for backend in load_gateway_config(file).llm.backends}


ConfigOf = Callable[[str], GatewayConfig]


def test_two_backends_serve_their_own_models_under_ollamas_names(config_of: ConfigOf, tmp_path: Path) -> None:
    servers = {"http://desk:11434": EVERYTHING, "http://rack:11434": EVERYTHING}
    choice, served = choice_of(config_of(TWO), servers, tmp_path)
    assert choice.by_model == {"small": "desk", "large": "rack", "secret": "stand-in"}
    assert choice.embeddings["vectors"] == "rack"
    assert served["desk"].model_names == {"small": "qwen3:4b"}
    assert served["rack"].model_names == {"large": "large:latest", "vectors": "vectors:latest"}
    assert (served["desk"].base_url, served["rack"].base_url) == ("http://desk:11434", "http://rack:11434")


@pytest.mark.parametrize(("present", "absent", "model"), [("desk", "rack", "large"), ("rack", "desk", "small")])
def test_a_backend_that_does_not_answer_is_dropped(
    config_of: ConfigOf, tmp_path: Path, present: str, absent: str, model: str
) -> None:
    choice, served = choice_of(config_of(TWO), {f"http://{present}:11434": EVERYTHING}, tmp_path)
    assert present in served
    assert choice.unused[absent] == f"no Ollama answers at http://{absent}:11434"
    assert choice.by_model[model] == "stand-in"


@pytest.mark.parametrize(("priority", "first"), [(0, ("rack", "cloud")), (1, ("cloud", "rack")), (2, ("cloud", "rack"))])
def test_an_ollama_without_a_list_fails_over_by_priority_as_in_aws(
    config_of: ConfigOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priority: int, first: tuple[str, str]
) -> None:
    monkeypatch.setenv("CLOUD_KEY", "key")
    rack = f'{{name: rack, provider: ollama, base_url: "http://rack:11434/v1", priority: {priority}}}'
    text = f"""
llm:
  backends:
    - {{name: cloud, provider: openai, api_key_env: CLOUD_KEY, supported_models: [secret]}}
    - {rack}
    - {{provider: embedded}}
models:
  - {{name: secret, context_window: 1000}}
  - {{name: large, context_window: 1000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
"""
    config = config_of(text)
    choice, _ = choice_of(config, {"http://rack:11434": EVERYTHING}, tmp_path)
    deployed = sorted((one for one in config.llm.backends if serves(one, "secret")), key=lambda one: one.priority)
    assert choice.serving("secret") == tuple(one.name for one in deployed) == first
    assert choice.serving("large") == ("rack",)


def test_an_ollama_that_the_file_does_not_name_serves_only_unlisted_models(config_of: ConfigOf, tmp_path: Path) -> None:
    text = """
llm:
  backends:
    - {name: cloud, provider: openai, api_key_env: CLOUD_KEY, supported_models: [secret]}
    - {provider: embedded}
models:
  - {name: secret, context_window: 1000}
  - {name: large, context_window: 1000}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
"""
    choice, served = choice_of(config_of(text), {DEFAULT_ADDRESS: EVERYTHING}, tmp_path)
    assert choice.by_model == {"large": "ollama", "secret": "stand-in"}
    assert set(served["ollama"].supported_models) == {"large"}


def test_a_missing_model_is_not_replaced_by_another_of_the_same_ollama(shipped: GatewayConfig, tmp_path: Path) -> None:
    choice, served = choice_of(shipped, {DEFAULT_ADDRESS: ["llama3.2:latest", "nomic-embed-text:latest"]}, tmp_path)
    assert set(choice.by_model.values()) == {"stand-in"}
    assert "ollama" not in served
    assert choice.unused["ollama"] == (
        f"{DEFAULT_ADDRESS} lacks llama4:scout, qwen2.5-coder:7b-instruct: run `ollama pull llama4:scout` and "
        "`ollama pull qwen2.5-coder:7b-instruct`"
    )
    assert choice.ollama_models == ["llama3.2:latest"]


@pytest.mark.parametrize("keys", [(), *((key,) for key in CLOUDS), CLOUDS], ids=lambda keys: "+".join(keys) or "none")
@pytest.mark.parametrize(("installed", "backend"), [([], "stand-in"), (["llama4:scout"], "ollama")])
def test_no_key_sends_llama_4_scout_to_a_cloud(
    shipped: GatewayConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: Sequence[str],
    installed: Sequence[str],
    backend: str,
) -> None:
    for key in keys:
        monkeypatch.setenv(key, "a-key")
    choice, _ = choice_of(shipped, {DEFAULT_ADDRESS: installed}, tmp_path)
    assert choice.serving("llama-4-scout") == (backend,)
    assert choice.serving(str(shipped.defaults.compact_summary_model)) == (backend,)


def test_in_the_shipped_file_only_ollama_serves_llama_4_scout(shipped: GatewayConfig) -> None:
    """In a deployment only the file decides."""
    assert {backend.provider for backend in shipped.llm.backends if serves(backend, "llama-4-scout")} == {"ollama"}


def test_ollama_serves_the_directors_model_under_ollamas_name(shipped: GatewayConfig, tmp_path: Path) -> None:
    choice, served = choice_of(shipped, {DEFAULT_ADDRESS: ["qwen2.5-coder:7b-instruct"]}, tmp_path)
    assert choice.serving("ollama/qwen2.5-coder:7b-instruct") == ("ollama",)
    assert served["ollama"].model_names == {"ollama/qwen2.5-coder:7b-instruct": "qwen2.5-coder:7b-instruct"}
    assert choice.by_model["llama-4-scout"] == "stand-in"


def test_the_model_of_spass_ollama_model_replaces_the_stand_in(
    shipped: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    choice, served = choice_of(shipped, {DEFAULT_ADDRESS: ["other:latest", "llama3.2:latest"]}, tmp_path)
    assert not choice.needs_standin
    assert (choice.by_model["llama-4-scout"], choice.by_model["claude-opus-4.7"]) == ("ollama", "anthropic")
    assert served["ollama"].model_names["llama-4-scout"] == "llama3.2:latest"
    assert choice.substitutes["grok-4"] == "llama3.2:latest"


def test_a_model_that_ollama_replaces_has_a_window_for_a_laptop(
    shipped: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ollama gets the window as ``num_ctx`` and reserves memory for it."""
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    choice_of(shipped, {DEFAULT_ADDRESS: ["llama3.2:latest"]}, tmp_path)
    windows = {model.name: model.context_window for model in load_gateway_config(tmp_path / "served.yaml").models}
    assert (windows["grok-4"], windows["llama-4-scout"]) == (16_384, 16_384)
    assert (windows["claude-opus-4.7"], windows["all-minilm-l6-v2"]) == (200_000, 256)


def test_a_model_that_its_own_ollama_serves_keeps_its_window(shipped: GatewayConfig, tmp_path: Path) -> None:
    choice_of(shipped, {DEFAULT_ADDRESS: ["llama4:scout"]}, tmp_path)
    windows = {model.name: model.context_window for model in load_gateway_config(tmp_path / "served.yaml").models}
    assert (windows["llama-4-scout"], windows["grok-4"]) == (131_072, 256_000)


def test_a_named_model_that_is_not_installed_replaces_nothing(
    shipped: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    choice, _ = choice_of(shipped, {DEFAULT_ADDRESS: ["other:latest"]}, tmp_path)
    assert set(choice.by_model.values()) == {"stand-in"}


def test_a_named_model_is_served_by_the_ollama_that_has_it(
    config_of: ConfigOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "special")
    servers = {"http://desk:11434": ["qwen3:4b"], "http://rack:11434": ["special:latest"]}
    choice, _ = choice_of(config_of(TWO), servers, tmp_path)
    assert choice.by_model == {"small": "desk", "large": "rack", "secret": "rack"}


def test_an_ollama_that_no_backend_names_serves_the_catalogues_models_it_has(config_of: ConfigOf, tmp_path: Path) -> None:
    text = "".join(line for line in TWO.splitlines(keepends=True) if "provider: ollama" not in line)
    choice, served = choice_of(config_of(text), {DEFAULT_ADDRESS: EVERYTHING}, tmp_path)
    assert choice.by_model == {"small": "ollama", "large": "ollama", "secret": "stand-in"}
    assert served["ollama"].base_url == DEFAULT_ADDRESS


def test_an_ollama_behind_openais_protocol_keeps_its_name_and_models(
    config_of: ConfigOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(line for line in TWO.splitlines(keepends=True) if "provider: ollama" not in line)
    monkeypatch.setenv("CLOUD_KEY", "a-key")
    choice, _ = choice_of(config_of(text.replace("name: cloud", "name: ollama")), {DEFAULT_ADDRESS: EVERYTHING}, tmp_path)
    assert choice.by_model == {"small": "ollama-here", "large": "ollama-here", "secret": "ollama"}


@pytest.fixture
def start_server() -> Iterator[Callable[[Sequence[str], str | None], str]]:
    """Return a function that starts an Ollama with these models, and a key if one is given, and returns its address."""
    with ExitStack() as stack:

        def start(models: Sequence[str], key: str | None = None) -> str:
            def answer(request: HttpRequest) -> HttpAnswer:
                known = request.path == "/api/tags" and (key is None or request.headers["Authorization"] == f"Bearer {key}")
                return json_answer({"models": [{"name": name} for name in models]}, 200 if known else 401)

            return stack.enter_context(serve(answer))

        yield start


StartServer = Callable[..., str]


def test_each_backend_is_asked_at_its_own_address(config_of: ConfigOf, start_server: StartServer) -> None:
    desk, rack = start_server(["qwen3:4b"]), start_server(["large"])
    config = config_of(TWO.replace("http://desk:11434", desk).replace("http://rack:11434", rack))
    assert find_servers(config) == {desk: ("qwen3:4b",), rack: ("large",)}


def test_a_server_that_does_not_answer_or_refuses_the_key_is_omitted(
    config_of: ConfigOf, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = start_server(["large"], "a-key")
    text = TWO.replace("http://desk:11434", "http://127.0.0.1:9").replace("http://rack:11434/v1", rack)
    text = text.replace("name: rack,", "name: rack, api_key_env: RACK_KEY,")
    for key, servers in ((None, {}), ("wrong", {}), ("a-key", {rack: ("large",)})):
        monkeypatch.setenv("RACK_KEY", key) if key else monkeypatch.delenv("RACK_KEY", raising=False)
        assert find_servers(config_of(text)) == servers


def test_ollama_base_url_is_the_address_of_a_backend_without_one(
    shipped: GatewayConfig, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start_server(["llama4:scout"])
    monkeypatch.setenv("OLLAMA_BASE_URL", f"{here}/")
    servers = find_servers(shipped)
    choice, served = choice_of(shipped, servers, tmp_path)
    assert (choice.by_model["llama-4-scout"], served["ollama"].base_url) == ("ollama", here)
