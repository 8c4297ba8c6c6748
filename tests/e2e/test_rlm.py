"""The kind ``rlm`` on a started gateway, over an upstream that is a server of its own."""

import json
from collections.abc import Mapping
from typing import Any, Final

from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import Gateway
from tests.e2e.sites import Site, chat_model, share

NEEDLES: Final = [f"needle {number}: the harbour opens at {number + 4} o'clock" for number in range(3)]
CELLS: Final = (
    "needles = [line for line in context.splitlines() if line.startswith('needle')]\nprint(len(needles))",
    "single = [llm_query(f'Repeat: {needles[n % 3]}') for n in range(10)]\nbatch = llm_batch([f'Part {n}' for n in range(64)])",
    "FINAL({'needles': needles, 'single': len(single), 'batch': len(batch)})",
)


def text_of_two_megabytes() -> str:
    lines = [f"filler {number:06d} of a text that no prompt may contain" for number in range(44_000)]
    for place, needle in zip((7, 20_000, 43_990), NEEDLES, strict=True):
        lines[place] = needle
    return "\n".join(lines)


REQUESTS: Final[list[Body]] = []


def reply(request: Body) -> Completion:
    """Answer as ``rlm-root`` with the cells in turn, and as ``rlm-small`` with a word."""
    REQUESTS.append(request)
    if request["model"] == "rlm-small":
        return Completion({"role": "assistant", "content": "understood"})
    done = sum(message["role"] == "assistant" for message in request["messages"])
    return Completion({"role": "assistant", "content": f"```python\n{CELLS[done]}\n```"})


share(Site("rlm", model_handler(reply), [chat_model("rlm-root"), chat_model("rlm-small")]))


def test_two_megabytes_are_searched_and_no_request_has_more_than_the_code_sent(gateway: Gateway) -> None:
    context = text_of_two_megabytes()
    assert len(context) > 2_000_000
    question = {"agent": "rlm", "model": "rlm-root", "input": "When does it open?", "context": context}
    with gateway.client("rlm-token") as client:
        answer = client.post("/v1/ask", json={**question, "params": {"sub_model": "rlm-small"}}, timeout=120)
    assert answer.status_code == 200, answer.text
    ask: Mapping[str, Any] = answer.json()
    assert json.loads(ask["content"]) == {"needles": NEEDLES, "single": 10, "batch": 64}
    assert ask["turns"] == 3
    small = [request for request in REQUESTS if request["model"] == "rlm-small"]
    assert [(request["temperature"], request["max_tokens"]) for request in small] == [(0.3, 1024)] * 74
    assert len(REQUESTS) == 77
    assert "filler" not in json.dumps(REQUESTS)
    assert not any(needle in json.dumps(request) for request in REQUESTS if request not in small for needle in NEEDLES)
