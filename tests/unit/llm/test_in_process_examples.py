"""The examples of the predecessor's page about its router work with their imports renamed, against a scripted upstream."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spass.llm import BackendError, NoBackendAvailable, aclose
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from spass.testing.model_server import Completion, serve_model
from tests.unit.llm.in_process_config import folder_with

MESSAGES = [{"role": "user", "content": "Hi"}]

ANSWER: Mapping[str, Any] = {
    "id": "chatcmpl-1",
    "model": "grok-4.1-0105",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    "x_of_the_provider": [1, {"a": None}],
}
OLLAMA_ANSWER: Mapping[str, Any] = {"message": {"role": "assistant", "content": "Hello there."}, "done": True}

SIMPLE_CALL = """
from spass.llm import complete

response = await complete(
    model="grok-4.1",
    messages=[
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
    ],
)

print(response.content)
"""
WITH_AGENT = """
from spass.llm import complete
response = await complete(
    model="grok-4.1",
    messages=messages,
    agent_id=metadata.own_name,  # Track tokens per agent
    temperature=0.7,
    max_tokens=2048,
)
"""
HANDLER = """
async def research_handler(payload: ResearchPayload, metadata: HandlerMetadata) -> HandlerResponse:
    from spass.llm import complete

    response = await complete(
        model="grok-4.1",
        messages=[
            {"role": "system", "content": metadata.usage_instructions},
            {"role": "user", "content": payload.query},
        ],
        agent_id=metadata.own_name,
    )

    return HandlerResponse(
        payload=ResearchResult(answer=response.content),
        to="summarizer",
    )
"""
ERROR = """
from spass.llm import BackendError, complete
try:
    response = await complete(model, messages)
except BackendError as e:
    # All backends failed
    logger.error(f"LLM call failed: {e}")
"""
TRACKING = """
from spass.llm.router import get_router

router = get_router()

# Get usage for specific agent
usage = router.get_agent_usage("greeter")
print(f"Total tokens: {usage.total_tokens}")
print(f"Requests: {usage.request_count}")

# Get all usage
all_usage = router.get_all_usage()

# Reset tracking
router.reset_agent_usage("greeter")  # One agent
once = router.get_all_usage()
router.reset_agent_usage()           # All agents
"""
CONFIG = """
llm:
  strategy: {strategy}           # failover | round-robin | least-loaded
  retries: 3                   # Max retry attempts per request
  retry_base_delay: 0.01        # Base delay for exponential backoff
  retry_max_delay: 0.05         # Maximum delay between retries

  backends:
    - provider: xai
      base_url: {url}/xai
      api_key_env: XAI_API_KEY   # Read from environment variable
      priority: 1                # Lower = preferred for failover
      rate_limit_tpm: 100000     # Tokens per minute limit
      max_concurrent: 20         # Max concurrent requests

    - provider: anthropic
      base_url: {url}/anthropic
      api_key_env: ANTHROPIC_API_KEY
      priority: 2

    - provider: openai
      api_key_env: OPENAI_API_KEY
      priority: 3

    - provider: ollama
      base_url: {url}
      supported_models: [llama3, mistral]

# A gateway's file lists its models; the predecessor's did not.
models:
  - {{name: grok-4.1, context_window: 131072}}
  - {{name: grok-down, context_window: 131072}}
  - {{name: claude-sonnet-4, context_window: 200000}}
  - {{name: gpt-4o, context_window: 128000}}
  - {{name: llama3, context_window: 8192}}
  - {{name: mistral, context_window: 8192}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
"""


@dataclass
class Metadata:
    own_name: str = "greeter"
    usage_instructions: str = "You research."


@dataclass
class ResearchPayload:
    query: str = "Who built Sanssouci?"


@dataclass
class ResearchResult:
    answer: str


@dataclass
class HandlerResponse:
    payload: ResearchResult
    to: str


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[list[HttpRequest]]:
    """Serve the upstream of gateway.yaml and yield its requests. The model ``grok-down`` fails."""
    received: list[HttpRequest] = []

    def respond(request: HttpRequest) -> HttpAnswer:
        received.append(request)
        if request.json["model"] == "grok-down":
            return json_answer({"error": {"message": "no"}}, 500)
        return json_answer(OLLAMA_ANSWER if request.path == "/api/chat" else ANSWER)

    dotenv = {"XAI_API_KEY": "xai-abc123", "ANTHROPIC_API_KEY": "sk-ant-1"}
    with serve(respond) as url, folder_with(tmp_path, CONFIG.format(url=url, strategy="failover"), dotenv):
        yield received


def run(*examples: str, **names: Any) -> dict[str, Any]:
    """Run examples one after the other in one event loop and return their names."""
    lines = "\n".join(examples).strip().splitlines()
    program = "async def program():\n" + "\n".join(f"    {line}" for line in lines) + "\n    return locals()\n"
    scope = {"metadata": Metadata(), "messages": MESSAGES, **names}
    exec(program, scope)

    async def main() -> dict[str, Any]:
        try:
            return dict(await scope["program"]())
        finally:
            await aclose()

    return asyncio.run(main())


def test_a_simple_call_prints_the_content(requests: list[HttpRequest], capsys: pytest.CaptureFixture[str]) -> None:
    run(SIMPLE_CALL)
    assert capsys.readouterr().out == "Hello there.\n"
    assert requests[0].path == "/xai/chat/completions"
    assert requests[0].headers["Authorization"] == "Bearer xai-abc123"
    assert requests[0].json["messages"] == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
    ]
    assert not requests[0].json.get("stream")


def test_the_response_has_the_fields_of_the_page_and_raw_is_what_the_provider_sent(requests: list[HttpRequest]) -> None:
    response = run(WITH_AGENT)["response"]
    assert response.content == "Hello there."
    assert response.model == "grok-4.1-0105"
    assert response.usage == {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    assert response.finish_reason == "stop"
    assert response.raw == ANSWER
    assert (requests[0].json["temperature"], requests[0].json["max_tokens"]) == (0.7, 2048)


def test_a_handler_answers_and_its_tokens_are_its_agents(requests: list[HttpRequest]) -> None:
    names = {"ResearchPayload": ResearchPayload, "ResearchResult": ResearchResult, "HandlerResponse": HandlerResponse}
    call = "answer = await research_handler(ResearchPayload(), metadata)\nfrom spass.llm import usage\nused = usage('greeter')"
    result = run(HANDLER, call, HandlerMetadata=Metadata, **names)
    assert result["answer"] == HandlerResponse(ResearchResult("Hello there."), "summarizer")
    assert result["used"].total_tokens == 14
    assert len(requests) == 1


def test_exhausted_retries_raise_backend_error(requests: list[HttpRequest], caplog: pytest.LogCaptureFixture) -> None:
    run(ERROR, model="grok-down", logger=logging.getLogger("handler"))
    assert caplog.messages == ["LLM call failed: The model's provider failed. Try again later."]
    assert len(requests) == 4


def test_an_unserved_model_is_a_backend_error_too(requests: list[HttpRequest], caplog: pytest.LogCaptureFixture) -> None:
    run(ERROR, model="unknown-1", logger=logging.getLogger("handler"))
    assert "No backend in service serves the model 'unknown-1'" in caplog.text
    assert requests == []


def test_the_router_tracks_tokens_of_each_agent_until_a_reset(
    requests: list[HttpRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    other = WITH_AGENT.replace("metadata.own_name", "'other'")
    result = run(WITH_AGENT, WITH_AGENT, other, TRACKING, "after = router.get_all_usage()")
    assert capsys.readouterr().out == "Total tokens: 28\nRequests: 2\n"
    assert {agent: usage.request_count for agent, usage in result["all_usage"].items()} == {"greeter": 2, "other": 1}
    assert [*result["once"]] == ["other"]
    assert result["after"] == {}
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("model", "path"), [("grok-4.1", "/xai/chat/completions"), ("claude-sonnet-4", "/anthropic/v1/messages")]
)
def test_the_model_name_selects_the_backend(requests: list[HttpRequest], model: str, path: str) -> None:
    with suppress(BackendError):  # the upstream answers in OpenAI's format only
        run(WITH_AGENT.replace("grok-4.1", model))
    assert requests[0].path == path


@pytest.mark.parametrize("model", ["llama3", "mistral"])
def test_ollama_serves_its_supported_models_without_a_key(requests: list[HttpRequest], model: str) -> None:
    assert run(WITH_AGENT.replace('"grok-4.1"', repr(model)))["response"].content == "Hello there."
    assert "Authorization" not in requests[0].headers
    assert requests[0].json["options"]["num_ctx"] == 8192


def test_a_model_whose_key_is_missing_has_no_backend(requests: list[HttpRequest]) -> None:
    with pytest.raises(NoBackendAvailable, match="key"):
        run(WITH_AGENT.replace("grok-4.1", "gpt-4o"))
    assert requests == []


@pytest.mark.parametrize("strategy", ["round-robin", "least-loaded"])
def test_the_other_strategies_are_accepted(tmp_path: Path, strategy: str) -> None:
    with (
        serve(lambda _: json_answer(ANSWER)) as url,
        folder_with(tmp_path, CONFIG.format(url=url, strategy=strategy), {"XAI_API_KEY": "xai-1"}),
    ):
        assert run(WITH_AGENT)["response"].content == "Hello there."


def test_the_example_of_the_documentation_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    example = page.split("## Calls in process", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    config = """
llm:
  backends:
    - {{provider: openai, base_url: "{url}/v1", supported_models: [llama-4-scout, all-minilm-l6-v2]}}
models:
  - {{name: llama-4-scout, context_window: 8192}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 8, context_window: 256}}
"""
    with (
        serve_model(lambda _: Completion({"content": "Hello there."}, usage=ANSWER["usage"])) as url,
        folder_with(tmp_path, config.format(url=url)),
    ):
        used = run(example)["usage"]("researcher")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Hello there. llama-4-scout stop 14"
    assert lines[-1] == "14 1"
    assert used.total_tokens == 0


def test_a_client_without_the_packages_of_the_gateway_is_told_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['yaml'] = None; from spass.llm import complete"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "yaml is missing" in done.stderr
    assert "requirements/local.txt" in done.stderr.splitlines()[-1]
