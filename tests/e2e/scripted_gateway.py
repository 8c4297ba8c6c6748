"""A started gateway whose models are a script: what the suites of other people's SDKs run against."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import Gateway
from tests.e2e.scripted_upstream import DIMENSIONS, scripted_upstream


@contextmanager
def scripted_gateway(
    folder: Path, *, token: str, chat: Sequence[str], embeddings: Sequence[str], embedding_inputs: int = 256
) -> Iterator[Gateway]:
    """Run a gateway that serves the models ``chat`` and ``embeddings`` to callers with ``token``, until the block ends."""
    with scripted_upstream() as upstream:
        models = [f"  - {{name: {name}, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}" for name in chat]
        models += [
            f"  - {{name: {name}, kind: embedding, dimensions: {DIMENSIONS}, context_window: 8192}}" for name in embeddings
        ]
        catalogue = "\n".join(models)
        config = folder / "gateway.yaml"
        config.write_text(
            f"""
llm:
  backends:
    - {{name: script, provider: openai, base_url: "{upstream}", supported_models: [{", ".join([*chat, *embeddings])}]}}
models:
{catalogue}
limits: {{embedding_inputs: {embedding_inputs}}}
defaults: {{embedding_model: {embeddings[0]}, compact_summary_model: {chat[0]}}}
tenants:
  - id: sdk
    tokens: [{{id: sdk, sha256: {hashlib.sha256(token.encode()).hexdigest()}}}]
"""
        )
        agents = folder / "agents"
        agents.mkdir()
        gateway = Gateway(folder / "home", environment={"SPASS_CONFIG": str(config), "SPASS_AGENTS": str(agents)})
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()
