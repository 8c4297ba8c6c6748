"""The banner lists tenants, models and what is missing."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from local.banner import banner
from local.home import ROOT, Home
from local.models import choose_models
from local.ollama import Servers
from local.signatures import AccessKey
from spass.aws.functions import LambdaFunction
from spass.core.code_calls import Sandbox
from spass.sandbox.launchers import NoSandbox, select_sandbox
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config

NO_CODE = NoSandbox("SPASS_SANDBOX is none.")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY", "OLLAMA_BASE_URL", "SPASS_OLLAMA_MODEL"):
        monkeypatch.delenv(key, raising=False)
    file = tmp_path / "operators.yaml"
    shipped = (ROOT / "gateway.yaml").read_text().split("\ntenants:")[0]
    file.write_text(f"{shipped}\ntenants:\n  - {{id: acme}}\n  - {{id: demo}}\n  - {{id: zeta}}\n")
    config: GatewayConfig = load_gateway_config(file)
    choice = choose_models(config, servers={}, standin_url="http://127.0.0.1:4999/v1")
    bucket = "spass-local"
    Home(tmp_path).write_aws_config("http://127.0.0.1:4566", "eu-central-1", AccessKey("SPASSKEY", "secret"))
    return banner("http://127.0.0.1:3000", file, config, choice, Home(tmp_path), bucket, ["gateway.yaml:3: something"], NO_CODE)


def test_it_lists_the_laptops_tenants_with_tokens_and_the_operators(shown: str, tmp_path: Path) -> None:
    assert "  tenant  demo  tokens  demo-token, demo-admin-token\n" in shown
    assert "  tenant  other token   other-token\n" in shown
    assert f"of {tmp_path}/operators.yaml, with tokens that only you know: acme, zeta\n" in shown


def test_it_lists_the_backend_of_each_model_and_models_without_one(shown: str) -> None:
    assert "stand-in answers for claude-opus-4.7, " in shown
    assert "embedded embeds with all-minilm-l6-v2\n" in shown
    assert "no backend answers for text-embedding-3-small: set OPENAI_API_KEY\n" in shown


def test_it_shows_the_link_to_the_page(shown: str) -> None:
    assert "  Chat in a browser: http://127.0.0.1:3000/ui " in shown


def test_its_line_puts_the_command_spass_on_the_path(shown: str) -> None:
    subprocess.run(["make", "--silent", ".venv/bin/spass"], cwd=ROOT, check=True)
    (line,) = [line for line in shown.splitlines() if "export PATH=" in line]
    script = f"{line}\ncd /\nspass --help"
    environment = {"PATH": "/usr/bin:/bin"}
    answer = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("usage: spass ")


def test_each_line_to_try_can_be_pasted_into_a_shell(shown: str) -> None:
    lines = [line for line in shown.partition("  Try:\n")[2].splitlines() if line.startswith("    ")]
    words = shlex.split("\n".join(lines))
    assert {"curl", "export", "spass", "aws", "make"} <= {*words}
    assert not [word for word in words if word.startswith(("(", "#"))]


def test_it_shows_how_to_upload_a_file(shown: str, tmp_path: Path) -> None:
    file = f"{tmp_path}/aws.config"
    assert f'    env -i PATH="$PATH" AWS_CONFIG_FILE={file} AWS_SHARED_CREDENTIALS_FILE={file} \\\n' in shown
    assert "      aws s3 cp notes.md s3://spass-local/uploads/demo/my-index/\n" in shown


def test_its_upload_reaches_the_emulator_although_the_operator_has_a_real_account(shown: str, tmp_path: Path) -> None:
    (home := tmp_path / "home" / ".aws").mkdir(parents=True)
    for name in ("credentials", "config"):
        (home / name).write_text(
            "[default]\naws_access_key_id = REAL\naws_secret_access_key = real\nregion = us-east-1\n"
            "[profile mine]\nregion = us-east-1\n"
        )
    (bin_folder := tmp_path / "bin").mkdir()
    aws = bin_folder / "aws"
    aws.write_text(
        f"#!{sys.executable}\nimport os, sys\nos.environ['HOME'] = {str(home.parent)!r}\nimport botocore.session\n"
        "client = botocore.session.get_session().create_client(sys.argv[1])\n"
        "key = client._request_signer._credentials\n"
        "print(key.access_key, key.secret_key, key.token, client.meta.region_name, client.meta.endpoint_url)\n"
    )
    aws.chmod(0o700)
    start = shown.index("    env -i ")
    command = shown[start : shown.index("my-index/", start)] + "my-index/"
    operators = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "HOME": str(home.parent),
        "AWS_ACCESS_KEY_ID": "REAL2",
        "AWS_SECRET_ACCESS_KEY": "real2",
        "AWS_SESSION_TOKEN": "token",
        "AWS_PROFILE": "mine",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": "http://other",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    }
    answer = subprocess.run(["sh", "-c", command], env=operators, capture_output=True, text=True, check=True)
    assert answer.stdout == "SPASSKEY secret None eu-central-1 http://127.0.0.1:4566\n"


def test_it_shows_no_upload_to_an_emulator_that_is_not_ours(tmp_path: Path) -> None:
    assert "aws s3 cp" not in banner_of(MANY, tmp_path)


def test_it_says_why_code_does_not_run(shown: str) -> None:
    assert "  code that models write: does not run; SPASS_SANDBOX is none.\n" in shown


def test_it_names_the_sandbox_in_which_code_runs(tmp_path: Path) -> None:
    shown = banner_of(MANY, tmp_path, sandbox=select_sandbox({"SPASS_SANDBOX_FUNCTION": "code"}, LambdaFunction))
    assert "  code that models write: runs in the sandbox lambda\n" in shown


def test_it_shows_notes(shown: str) -> None:
    assert "  note: gateway.yaml:3: something\n" in shown


def test_the_example_names_a_model_of_the_catalogue(shown: str, tmp_path: Path) -> None:
    assert '"model": "llama-4-scout"' in shown
    file = tmp_path / "other.yaml"
    file.write_text(
        "models:\n  - {name: mini, kind: embedding, dimensions: 3, context_window: 16}\n"
        "  - {name: small, context_window: 1000}\n  - {name: large, context_window: 1000}\ndefaults: {embedding_model: mini}\n"
    )
    config = load_gateway_config(file)
    choice = choose_models(config, servers={}, standin_url="http://127.0.0.1:4999/v1")
    other = banner(
        "http://127.0.0.1:3000", file, config, choice, Home(tmp_path), "http://127.0.0.1:4999/spass-local", [], NO_CODE
    )
    assert '"model": "small"' in other
    assert "llama-4-scout" not in other


def test_it_names_the_configuration_file(shown: str, tmp_path: Path) -> None:
    assert f"  configuration: {tmp_path / 'operators.yaml'}\n" in shown


def test_it_lists_the_unused_backends_with_reasons(shown: str) -> None:
    reasons = [*(f"{name} (no {name.upper()}_API_KEY)" for name in ("anthropic", "openai", "xai"))]
    reasons += ["ollama (no Ollama answers at http://localhost:11434)", "groq (no GROQ_API_KEY)"]
    assert f"  unused: {', '.join(reasons)}\n" in shown


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


def banner_of(
    text: str, folder: Path, *, offline: bool = False, servers: Servers | None = None, sandbox: Sandbox = NO_CODE
) -> str:
    file = folder / "many.yaml"
    file.write_text(text)
    config = load_gateway_config(file)
    choice = choose_models(config, servers=servers or {}, standin_url="http://127.0.0.1:4999/v1", offline=offline)
    return banner("http://127.0.0.1:3000", file, config, choice, Home(folder), "http://127.0.0.1:4999/spass-local", [], sandbox)


def test_it_names_every_backend_of_a_model_and_the_strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONE_KEY", "a-key")
    monkeypatch.setenv("TWO_KEY", "a-key")
    shown = banner_of(MANY, tmp_path)
    assert "  one, two (round-robin) answer for scout\n" in shown
    assert "  one answers for small\n" in shown
    assert (
        "  unused: signed (no api_key_env: here it needs a Bedrock API key), ollama (no Ollama answers at http://localhost:11434)\n"
        in shown
    )


def test_backends_with_the_same_reason_share_a_line(tmp_path: Path) -> None:
    assert "  unused: one, two, signed, ollama (--offline)\n" in banner_of(MANY, tmp_path, offline=True)


def test_of_many_models_it_names_the_first_eight(tmp_path: Path) -> None:
    models = "".join(f"  - {{name: m{number}, context_window: 1000}}\n" for number in range(20))
    assert "  stand-in answers for scout, small, m0, m1, m2, m3, m4, m5, 14 more\n" in banner_of(MANY + models, tmp_path)


LOCAL_OLLAMA = {"http://localhost:11434": ["nomic-embed-text:latest", "llama3.2:latest"]}


def test_it_says_how_an_ollama_model_can_replace_the_stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPASS_OLLAMA_MODEL", raising=False)
    shown = banner_of(MANY, tmp_path, servers=LOCAL_OLLAMA)
    assert "  stand-in answers for scout, small\n" in shown
    assert "  Ollama has llama3.2:latest: SPASS_OLLAMA_MODEL=llama3.2:latest lets it take the stand-in's place\n" in shown


def test_it_names_the_ollama_model_that_replaces_the_stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "llama3.2")
    shown = banner_of(MANY, tmp_path, servers=LOCAL_OLLAMA)
    assert "  ollama answers for scout, small with llama3.2:latest (SPASS_OLLAMA_MODEL)\n" in shown
    assert "stand-in" not in shown


@pytest.mark.parametrize(
    ("servers", "reason"),
    [(LOCAL_OLLAMA, "Ollama at http://localhost:11434 has no model phi3"), ({}, "no Ollama answers at http://localhost:11434")],
)
def test_it_says_why_spass_ollama_model_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, servers: Servers, reason: str
) -> None:
    monkeypatch.setenv("SPASS_OLLAMA_MODEL", "phi3")
    monkeypatch.delenv("OLLAMA_BASE_URL", raising=False)
    assert f"  SPASS_OLLAMA_MODEL=phi3 has no effect: {reason}\n" in banner_of(MANY, tmp_path, servers=servers)
