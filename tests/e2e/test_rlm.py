"""The kind ``rlm`` on a started gateway, over an upstream that is a server of its own."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import running_gateway

TOKEN: Final = "rlm-token"
NEEDLES: Final = [f"needle {number}: the harbour opens at {number + 4} o'clock" for number in range(3)]
CELLS: Final = (
    "needles = [line for line in context.splitlines() if line.startswith('needle')]\nprint(len(needles))",
    "single = [llm_query(f'Repeat: {needles[n % 3]}') for n in range(10)]\nbatch = llm_batch([f'Part {n}' for n in range(64)])",
    "FINAL({'needles': needles, 'single': len(single), 'batch': len(batch)})",
)
CONFIG: Final = """
llm:
  backends:
    - {{name: script, provider: openai, base_url: "{upstream}/v1", supported_models: [root, small]}}
models:
  - {{name: root, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: small, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: e, kind: embedding, dimensions: 16, context_window: 8192}}
defaults: {{embedding_model: e, compact_summary_model: root}}
tenants:
  - id: rlm
    tokens: [{{id: rlm, sha256: {sha256}}}]
"""


def text_of_two_megabytes() -> str:
    lines = [f"filler {number:06d} of a text that no prompt may contain" for number in range(44_000)]
    for place, needle in zip((7, 20_000, 43_990), NEEDLES, strict=True):
        lines[place] = needle
    return "\n".join(lines)


def test_two_megabytes_are_searched_and_no_request_has_more_than_the_code_sent(tmp_path: Path) -> None:
    requests: list[Body] = []

    def reply(request: Body) -> Completion:
        requests.append(request)
        if request["model"] == "small":
            return Completion({"role": "assistant", "content": "understood"})
        done = sum(message["role"] == "assistant" for message in request["messages"])
        return Completion({"role": "assistant", "content": f"```python\n{CELLS[done]}\n```"})

    context = text_of_two_megabytes()
    body = {"agent": "rlm", "model": "root", "input": "When does it open?", "context": context, "params": {"sub_model": "small"}}
    with serve_model(reply) as upstream:
        config = CONFIG.format(upstream=upstream, sha256=hashlib.sha256(TOKEN.encode()).hexdigest())
        with running_gateway(tmp_path, config) as gateway:
            answer = httpx.post(f"{gateway.url}/v1/ask", json=body, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120)
    assert answer.status_code == 200, answer.text
    ask: Mapping[str, Any] = answer.json()
    assert len(context) > 2_000_000
    assert json.loads(ask["content"]) == {"needles": NEEDLES, "single": 10, "batch": 64}
    assert ask["turns"] == 3
    small = [request for request in requests if request["model"] == "small"]
    assert [(request["temperature"], request["max_tokens"]) for request in small] == [(0.3, 1024)] * 74
    assert len(requests) == 77
    assert "filler" not in json.dumps(requests)
    assert not any(needle in json.dumps(request) for request in requests if request["model"] == "root" for needle in NEEDLES)
