"""Find the Python that has the OpenHands SDK."""

import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from spass.sandbox.foreign.versions import probe
from spass.sandbox.scratch_folder import scratch_folder

PYTHON_VARIABLE: Final = "SPASS_OPENHANDS_PYTHON"
RUNNER: Final = Path(__file__).with_name("openhands_runner.py")
_OLDEST: Final = (3, 12)
_NAMES: Final = ("python3.12", "python3.13", "python3.14", "python3", "python")
_PROBE: Final = """
import importlib.util, json, sys
def is_missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except ImportError:
        return True
print(json.dumps([list(sys.version_info[:2]), [name for name in ("openhands.sdk", "openhands.tools") if is_missing(name)]]))
"""
_ISOLATED: Final = ("-s", "-P", "-B", "-X", "utf8")
_INSTALL: Final = (
    "python3.12 -m venv ~/.spass/openhands && ~/.spass/openhands/bin/pip install openhands-sdk==1.58.0 openhands-tools==1.58.0"
)
_OR_NAME: Final = f" (or name a Python that has them: export {PYTHON_VARIABLE}=…)"


class OpenHands:
    """The OpenHands SDK in a Python of its own, because it needs Python 3.12.

    ``environment`` are the variables of the gateway, and ``folder`` is that in which the SDK is looked for first.
    """

    name = "OpenHands"
    key_variable = "LLM_API_KEY"
    base_url_variable = "LLM_BASE_URL"

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder

    def find(self) -> tuple[str | None, str]:
        """Return the interpreter, or None and the reason why there is none, with the command that helps."""
        named = self._environment.get(PYTHON_VARIABLE)
        newest: tuple[int, int] | None = None
        for python in [named] if named else self._candidates():
            answer = probe((python, *_ISOLATED, "-c", _PROBE))
            if not answer:
                continue
            (major, minor), missing = json.loads(answer)
            if (major, minor) >= _OLDEST and not missing:
                return python, ""
            newest = max(newest or (0, 0), (major, minor))
        if named and newest is None:
            return None, f"{PYTHON_VARIABLE} does not name a Python that runs. Correct it, or unset it and run: {_INSTALL}"
        if newest is None or newest < _OLDEST:
            found = f"the newest Python found is {newest[0]}.{newest[1]}" if newest else "no Python was found"
            return (
                None,
                f"the OpenHands SDK needs Python 3.12 or later, and {found}. Install Python 3.12 and run: {_INSTALL}{_OR_NAME}",
            )
        return None, f"the packages openhands-sdk and openhands-tools are not installed. Run: {_INSTALL}{_OR_NAME}"

    def command(self, python: str) -> tuple[str, ...]:
        """Return the command of the runner."""
        return (python, *_ISOLATED, str(RUNNER))

    async def prepare(self) -> None:
        """Do nothing: the operator installs the SDK."""

    @asynccontextmanager
    async def home(self, owner: str) -> AsyncIterator[Path]:  # noqa: ARG002
        """Yield the HOME of one run. Nothing in it is needed afterwards."""
        async with scratch_folder("spass-openhands-") as folder:
            yield folder

    def _candidates(self) -> Iterator[str]:
        installed = self._folder / "openhands" / "bin" / "python"
        if installed.exists():
            yield str(installed)
        if sys.executable:
            yield sys.executable
        for name in _NAMES:
            if found := shutil.which(name, path=self._environment.get("PATH", "")):
                yield found
