"""`make validate` checks the files before a deployment and warns of models that would fail in AWS."""

from pathlib import Path

import pytest

from local.home import ROOT
from local.validate import main

CONFIG = """
llm:
  backends:
    - {provider: ollama, base_url: "https://ollama.example.com", supported_models: [scout]}
    - {name: mine, provider: openai, base_url: "http://localhost:8000/v1", supported_models: [scout, small]}
    - {provider: embedded}
models:
  - {name: scout, context_window: 1000}
  - {name: small, context_window: 1000}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
tenants:
  - {id: acme, defaults: {compact_summary_model: small}}
"""


def validate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Path, agents: Path) -> str:
    monkeypatch.setenv("SPASS_CONFIG", str(config))
    monkeypatch.setenv("SPASS_AGENTS", str(agents))
    assert main() == 0
    return capsys.readouterr().out


def test_it_lists_the_models_agents_and_settings_that_need_a_local_ollama(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = validate(monkeypatch, capsys, ROOT / "gateway.yaml", ROOT / "agents")
    assert "the backend ollama, because its address is on this machine. These models fail: llama-4-scout, " in output
    for name in ("agent berlin-rag", "agent berlin-tour", "agent concise-de", "defaults.compact_summary_model"):
        assert name in output


def test_it_does_not_list_a_model_that_another_backend_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, agents = tmp_path / "gateway.yaml", tmp_path / "agents"
    config.write_text(CONFIG)
    agents.mkdir()
    output = validate(monkeypatch, capsys, config, agents)
    assert (
        "the backend mine, because its address is on this machine. These models fail: small. "
        "Used by: compact_summary_model of tenant acme." in output
    )
    config.write_text(CONFIG.replace("http://localhost:8000/v1", "https://llm.example.com/v1"))
    assert "cannot reach" not in validate(monkeypatch, capsys, config, agents)


@pytest.mark.parametrize(("url", "expected"), [("http://localhost:8080", True), ("https://searx.example.com", False)])
def test_it_warns_of_a_search_provider_that_functions_cannot_reach(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, url: str, expected: bool
) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG + f'search: {{provider: searxng, base_url: "{url}"}}\n')
    (tmp_path / "agents").mkdir()
    assert ("cannot reach the search provider" in validate(monkeypatch, capsys, config, tmp_path / "agents")) is expected


def test_it_prints_each_warning_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.replace('"http://localhost:8000/v1"', '"http://llm.example.com/v1", api_key_env: MINE_KEY'))
    (tmp_path / "agents").mkdir()
    output = validate(monkeypatch, capsys, config, tmp_path / "agents")
    assert output.count("in the clear") == 1
    assert output.endswith("are valid.\n")


def test_it_names_files_with_their_folders(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, agents = tmp_path / "other.yaml", tmp_path / "agents"
    config.write_text(CONFIG.partition("tenants:")[0])
    agents.mkdir()
    for current, folder in ((ROOT, f"{tmp_path}/"), (tmp_path, "")):
        monkeypatch.chdir(current)
        output = validate(monkeypatch, capsys, config, agents)
        assert f"\n{folder}other.yaml: there are no tenants yet" in output
        assert output.endswith(f"\n{folder}other.yaml and 0 agents in {folder}agents/ are valid.\n")
    monkeypatch.chdir(ROOT)
    (agents / "a.yaml").write_text("name: a\nmodel: nobody\n")
    assert main() == 1
    assert capsys.readouterr().err.startswith(f"{agents}/a.yaml:2: model: ")
    config.write_text("llm:\n  retrys: 3\n")
    assert main() == 1
    assert capsys.readouterr().err.startswith(f"{config}:2: ")


def test_it_warns_of_tools_that_an_agent_cannot_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "a.yaml").write_text("name: a\nmodel: scout\nkind: simple\ntools: [calculator]\n")
    output = validate(monkeypatch, capsys, tmp_path / "gateway.yaml", agents)
    assert f"{agents}/a.yaml:4: tools: the kind simple of 'a' uses no tools; remove this key, or choose another kind\n" in output
