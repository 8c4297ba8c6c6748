"""A deployed process enforces the limits of its gateway.yaml."""

import secrets
from pathlib import Path

import pytest

from spass.aws.clients import Aws
from spass.core.errors import RateLimited, UpstreamError
from spass.core.messages import Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps
from spass.limits.shared_limit import SharedLimit
from spass.models.types import CallContext, ChatRequest
from spass.store.keys import backend_limit
from spass.web.services import Services, Settings

pytestmark = pytest.mark.anyio

CONFIG = """
llm:
  retries: 0
  backends:
    - {{name: {name}, provider: openai, base_url: "http://127.0.0.1:9", supported_models: [small],
       rate_limit_tpm: 1000, max_concurrent: 1}}
    - {{name: embedded, provider: embedded}}
models:
  - {{name: small, context_window: 8000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: small}}
"""


async def test_reservations_of_other_workers_count_and_a_failed_attempt_leaves_none(aws: Aws, tmp_path: Path) -> None:
    name = f"b-{secrets.token_hex(6)}"
    (tmp_path / "gateway.yaml").write_text(CONFIG.format(name=name))
    services = Services(Settings(tmp_path / "gateway.yaml", tmp_path, "spass", "spass"))
    services.__dict__["aws"] = aws
    request = ChatRequest("small", (Message(Role.USER, "Hi"),))

    async def chat() -> None:
        context = CallContext(Deadline.after(0.5), expected_usage=TokenUsage(10, 20))
        async for _ in services.router.chat(request, context):
            pass

    with pytest.raises(UpstreamError):
        await chat()
    item = await aws.shared.get(backend_limit(name, 0))
    assert item is not None
    assert (item["used"], item["active"]) == (0, 0)
    other = SharedLimit(aws.shared, lambda shard: backend_limit(name, shard), Caps(1000, 1))
    assert isinstance(await other.reserve("another worker's", tokens=1000), Reservation)
    with pytest.raises(RateLimited):
        await chat()
    await services.aclose()
