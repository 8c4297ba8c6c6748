"""A function that calls models reads their keys in one call while it starts, before its first request."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from infra.routes import ROUTES, Permission
from infra.workers import WORKERS
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from tests.functions.gateway import event

ROOT = Path(__file__).parents[2]
MODEL_CALLERS = sorted(
    [row.module for row in ROUTES if Permission.MODELS in row.permissions]
    + [f"workers.{row.module}" for row in WORKERS if Permission.MODELS in row.permissions]
)
"""The modules whose functions may read keys."""

CONFIG = """
llm:
  backends:
    - {provider: anthropic}
    - {provider: openai, supported_models: [vectors]}
    - {provider: embedded}
models:
  - {name: claude-opus-4.7, context_window: 1000}
  - {name: vectors, kind: embedding, dimensions: 3, context_window: 10}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
search: {provider: tavily}
defaults: {embedding_model: EMBEDDING}
"""


@dataclass
class ParameterStore:
    """An SSM server. ``requests`` has the operation and the names of each request."""

    url: str = ""
    requests: list[tuple[str, frozenset[str]]] = field(default_factory=list)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        names = request.json["Names"]
        self.requests.append((request.headers["X-Amz-Target"], frozenset(names)))
        parameters = [{"Name": name, "Value": "a-key"} for name in names if request.json["WithDecryption"]]
        return json_answer({"Parameters": parameters, "InvalidParameters": []})


@pytest.fixture
def store() -> Iterator[ParameterStore]:
    store = ParameterStore()
    with serve(store.answer) as store.url:
        yield store


Start = Callable[[Sequence[str], str], None]


@pytest.fixture
def start(store: ParameterStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    """Return a function that starts modules as Lambda does, with an embedding model for documents."""
    for name, value in {
        "AWS_LAMBDA_FUNCTION_NAME": "a-function",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL_SSM": store.url,
        "NO_PROXY": "127.0.0.1",
        "SPASS_CONFIG": str(tmp_path / "gateway.yaml"),
        "SPASS_AGENTS": str(tmp_path / "agents"),
        "SPASS_KEYS_PATH": "/spass/test/",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "agents").mkdir()

    def start_modules(modules: Sequence[str], embedding_model: str) -> None:
        (tmp_path / "gateway.yaml").write_text(CONFIG.replace("EMBEDDING", embedding_model))
        for module in modules:
            # Use another module name, so that the modules that other tests imported stay as they are.
            spec = spec_from_file_location(f"started_{module}", ROOT / "functions" / f"{module.replace('.', '/')}.py")
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(module_from_spec(spec))

    return start_modules


def test_every_function_that_calls_models_reads_all_keys_in_one_call(store: ParameterStore, start: Start) -> None:
    start(MODEL_CALLERS, "vectors")
    names = frozenset(f"/spass/test/{name}_API_KEY" for name in ("ANTHROPIC", "OPENAI", "TAVILY"))
    assert Counter(store.requests) == {("AmazonSSM.GetParameters", names): len(MODEL_CALLERS)}


def test_a_function_that_embeds_without_a_key_reads_no_keys(store: ParameterStore, start: Start) -> None:
    start(["rag.query", "workers.jobs"], "all-minilm-l6-v2")
    assert store.requests == []


DESCRIBE = """
import json, sys
from spass.aws.clients import Aws
connected = []
Aws.connect = lambda aws: connected.append(aws)
from functions.workers.shared import handler
answer = handler(json.load(sys.stdin), None)
print("ANSWER", answer["statusCode"], len(connected))
"""


def test_the_function_of_the_openapi_document_does_not_start_others(
    store: ParameterStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function imports every route file, and anyone may call it. It must not use SSM's quota or create clients."""
    start([], "vectors")
    modules = [f"functions.{route.module}" for route in ROUTES if route.function_name == "meta-docs"]
    monkeypatch.setenv("SPASS_ROUTES", ",".join(modules))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'shared'}:{ROOT}")
    request = json.dumps(event("GET", "/openapi.json", "/openapi.json", {}, b""))
    command = [sys.executable, "-W", "ignore", "-c", DESCRIBE]
    process = subprocess.run(command, input=request, check=False, capture_output=True, text=True)
    assert "ANSWER 200 1\n" in process.stdout, process.stderr
    assert store.requests == []
