"""Attack the limits of a running gateway.

``tokens_per_minute`` also limits calls that take longer than a minute. ``tests/unit/calls/test_admission.py`` and
``tests/unit/llm/test_router_limits.py`` test that in virtual time. Here a call of some seconds tests from which moment its tokens
count.
"""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import Gateway, running_gateway

CALL_SECONDS: Final = 12
CAP: Final = 1000
TOKEN: Final = "limits-token"

CONFIG: Final = """
llm:
  backends:
    - {{name: slow, provider: openai, base_url: "{url}", supported_models: [slow]}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: slow, context_window: 100000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: slow}}
tenants:
  - id: limited
    defaults: {{tokens_per_minute: {cap}}}
    tokens: [{{id: limited, sha256: {digest}}}]
"""


def slow_answer(body: Body) -> Completion:
    """Answer slowly, ignore ``max_tokens`` and report 33 times the cap."""
    time.sleep(CALL_SECONDS)
    usage = {"prompt_tokens": 2, "completion_tokens": 33 * CAP, "total_tokens": 33 * CAP + 2}
    return Completion({"content": "Hello."}, usage=usage)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with serve_model(slow_answer) as upstream:
        config = CONFIG.format(url=f"{upstream}/v1", cap=CAP, digest=hashlib.sha256(TOKEN.encode()).hexdigest())
        with running_gateway(tmp_path, config) as gateway:
            yield gateway


def test_tokens_beyond_the_reservation_are_refused_for_a_minute_from_the_calls_end(gateway: Gateway) -> None:
    body = {"model": "slow", "messages": [{"role": "user", "content": "Hi!?"}], "max_tokens": 20}
    with gateway.client(TOKEN) as client:
        admitted = client.post("/v1/chat/completions", json=body)
        refused = client.post("/v1/chat/completions", json=body)
    assert admitted.status_code == 200
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    # A bucket leaves the window at most 66 s after it begins. That of the call's start does so at most 66 - 12 s from now.
    assert int(refused.headers["Retry-After"]) > 66 - CALL_SECONDS
