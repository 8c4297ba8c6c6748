"""A machine that has the real SDKs, and a gateway on it. ``make test-foreign`` installs them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from spass.core.messages import Json
from spass.sandbox.foreign.service import ForeignAgents
from tests.functions.conftest import aws, gateway
from tests.functions.gateway import Gateway, Reply

__all__ = ["aws", "gateway"]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-foreign" / "bin" / "python"
NODE = ROOT / "tests" / "foreign" / "node" / "node_modules" / "node" / "bin"
LLM_KEY = "sk-llm-key-0123456789"
ANTHROPIC_KEY = "sk-ant-api03-key-0123456789"


@dataclass(frozen=True)
class Machine:
    """A machine whose gateway lets foreign agents work in ``workspace``. The runner is installed in ``folder``."""

    gateway: Gateway
    workspace: Path
    folder: Path

    def use(self, *, llm: str = "", anthropic: str = "") -> None:
        """Let the SDKs call the models at these URLs."""
        environment = {
            **os.environ,
            "PATH": f"{NODE}:{os.environ['PATH']}",
            "SPASS_OPENHANDS_PYTHON": str(PYTHON),
            "LLM_API_KEY": LLM_KEY,
            "LLM_BASE_URL": llm,
            "ANTHROPIC_API_KEY": ANTHROPIC_KEY,
            "ANTHROPIC_BASE_URL": anthropic,
        }
        self.gateway.services.foreign_agents = ForeignAgents([self.workspace.parent], environment=environment, folder=self.folder)

    def body(self, kind: str, text: str, **params: Json) -> Mapping[str, Json]:
        return {"input": text, "agent": kind, "params": {"workspace": str(self.workspace), **params}}

    def ask(self, kind: str, text: str, **params: Json) -> Reply:
        return self.gateway.send("POST", "/v1/ask", body=self.body(kind, text, **params))


@pytest.fixture(scope="session")
def runner_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the first test installs the Node runner."""
    return tmp_path_factory.mktemp("spass")


@pytest.fixture
def machine(gateway: Gateway, tmp_path: Path, runner_folder: Path) -> Machine:
    workspace = tmp_path / "projects" / "app"
    workspace.mkdir(parents=True)
    return Machine(gateway, workspace, runner_folder)
