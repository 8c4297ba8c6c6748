"""Run third-party clients, each as a separate program, through a running gateway. ``make test-clients`` installs and runs them.

Each program resembles one that a user of the client would write. It reads ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``,
``CHAT_MODEL`` and ``EMBEDDING_MODEL``, asserts what it receives, and exits with 0.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.conftest import ROOT, Gateway, running_site
from tests.e2e.scripted_gateway import scripted_site

TOKEN: Final = "clients-token"
CHAT: Final = "script-chat"
EMBEDDING: Final = "script-embedding"
SECONDS: Final = 120
HERE: Final = Path(__file__).parent
PYTHON: Final = ROOT / ".venv-clients/bin/python"
PROGRAMS: Final = [*sorted(HERE.glob("programs/*.py")), *sorted(HERE.glob("node/*.mjs"))]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    site = scripted_site("clients", TOKEN, [CHAT], [EMBEDDING])
    with running_site(tmp_path_factory.mktemp("clients"), site, {"embedding_inputs": 2048}) as gateway:
        yield gateway


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem.removesuffix("_client"))
def test_the_program_of_a_client_succeeds(program: Path, scripted: Gateway, tmp_path: Path) -> None:
    command = [str(PYTHON)] if program.suffix == ".py" else ["node"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": f"{scripted.url}/v1",
        "OPENAI_API_KEY": TOKEN,
        "CHAT_MODEL": CHAT,
        "EMBEDDING_MODEL": EMBEDDING,
        # Without these settings, LiteLLM downloads prices and mini-swe-agent prints a startup message.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_SILENT_STARTUP": "1",
        "NO_PROXY": "127.0.0.1",
    }
    result = subprocess.run(
        [*command, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
