"""Find Node, and install the runner of the Claude Agent SDK on first use.

The SDK is proprietary and 420 MB large, so it is never shipped: npm installs the version that ``package-lock.json`` pins.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from spass.core.errors import KindUnavailable
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.foreign.versions import probe
from spass.sandbox.program import Program

SOURCE: Final = Path(__file__).with_name("claude_code_runner")
_OLDEST_NODE: Final = 22
_INSTALL_NODE: Final = "Install it, for example: nvm install 22"
_NEEDS_NODE: Final = "the Claude Agent SDK needs Node 22 or later"
_NEEDS_NPM: Final = f"npm is not on the PATH, and it must install the Claude Agent SDK. npm comes with Node. {_INSTALL_NODE}"
_PINNED: Final = ("package.json", "package-lock.json")
_RUNNER: Final = "runner.mjs"
_SDK: Final = Path("node_modules", "@anthropic-ai", "claude-agent-sdk", "package.json")
_COMPLETE: Final = Path("node_modules", ".spass-complete")
"""Written after npm has ended without an error. It holds the digest of the pinned files."""
_COMPLETE_BY_HAND: Final = Path("node_modules", ".package-lock.json")
"""Written by npm as its last step, also if the operator runs it."""
_NPM_VARIABLES: Final = re.compile(r"(?i)npm_config_\w+|https?_proxy|no_proxy|node_extra_ca_certs|ssl_cert_file|tmpdir|lang")
_INSTALL: Final = ("install", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
_PRIVATE: Final = 0o700
_LOCK_SECONDS: Final = 0.2
_PROGRESS_SECONDS: Final = 15.0


class ClaudeCode:
    """The Claude Agent SDK in a Node runner in ``folder``. ``environment`` are the variables of the gateway."""

    name = "Claude Code"
    key_variable = "ANTHROPIC_API_KEY"
    base_url_variable = "ANTHROPIC_BASE_URL"

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder / "claude_code_runner"

    def find(self) -> tuple[str | None, str]:
        """Return Node's program, or None and the reason why there is none, with the command that helps."""
        node = self._find("node")
        version = probe((node, "--version")) if node else ""
        number = re.match(r"v?(\d+)", version)
        if node is None or number is None:
            return None, f"{_NEEDS_NODE}, which is not on the PATH. {_INSTALL_NODE}"
        if int(number[1]) < _OLDEST_NODE:
            return None, f"{_NEEDS_NODE}, and the one on the PATH is {version}. {_INSTALL_NODE}"
        if not self._is_complete() and self._find("npm") is None:
            return None, _NEEDS_NPM
        return node, ""

    def command(self, node: str) -> tuple[str, ...]:
        """Return the command of the runner."""
        return (node, str(self._folder / _RUNNER))

    async def prepare(self) -> None:
        """Install the runner if it is not complete. Only one process installs at a time; the others wait. Raise KindUnavailable
        if npm cannot install it. The message says what to do."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            async with _lock(self._folder.with_suffix(".lock")):
                if not self._is_complete():
                    await self._install()
                _replace(SOURCE / _RUNNER, self._folder / _RUNNER)
        except OSError as error:
            raise KindUnavailable(
                f"The runner of the Claude Agent SDK cannot be written to ~/.spass/claude_code_runner: {error.strerror}."
            ) from None

    @asynccontextmanager
    async def home(self, owner: str) -> AsyncIterator[Path]:
        """Yield the HOME of runs for ``owner``. It stays, because the SDK keeps sessions there."""
        folder = self._folder / "homes" / sha256(owner.encode()).hexdigest()[:32]
        try:
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        except OSError as error:
            raise ChildFailed(f"has no folder for its sessions: {error.strerror}") from None
        yield folder

    def _find(self, name: str) -> str | None:
        return shutil.which(name, path=self._environment.get("PATH", ""))

    def _is_complete(self) -> bool:
        """Return True if the whole pinned version is installed. An interrupted installation has neither of npm's last files."""
        try:
            installed = json.loads((self._folder / _SDK).read_bytes())
            if installed["version"] != _pinned_version():
                return False
            if (self._folder / _COMPLETE_BY_HAND).is_file():
                return True
            return (self._folder / _COMPLETE).read_text() == _digest()
        except (OSError, ValueError, LookupError, TypeError):
            return False

    async def _install(self) -> None:
        npm = self._find("npm")
        if npm is None:
            raise KindUnavailable(f"This gateway cannot run Claude Code: {_NEEDS_NPM}")
        _tell("Installing the Claude Agent SDK (420 MB) in ~/.spass/claude_code_runner …")
        # What an interrupted installation left behind may be half a package.
        await asyncio.to_thread(shutil.rmtree, self._folder / "node_modules", ignore_errors=True)
        for name in _PINNED:
            _replace(SOURCE / name, self._folder / name)
        environment = {name: value for name, value in self._environment.items() if _NPM_VARIABLES.fullmatch(name)}
        environment |= {name: self._environment[name] for name in ("PATH", "HOME") if name in self._environment}
        program = Program((npm, *_INSTALL), environment=environment, folder=self._folder)
        progress = asyncio.create_task(_tell_progress())
        try:
            async with program:
                program.end_input()
                while await program.read_line() is not None:
                    pass
                await program.wait()
        except ChildFailed as failure:
            raise KindUnavailable(
                f"npm could not install the Claude Agent SDK: it {program.describe(str(failure))}. Check the network, and try: "
                "npm install --prefix ~/.spass/claude_code_runner"
            ) from None
        finally:
            progress.cancel()
        if not (self._folder / _SDK).is_file():
            raise KindUnavailable(
                "npm ended without having installed the Claude Agent SDK. Try: npm install --prefix ~/.spass/claude_code_runner"
            )
        (self._folder / _COMPLETE).write_text(_digest())
        _tell("The Claude Agent SDK is installed.")


def _pinned_version() -> str:
    version: str = json.loads((SOURCE / "package.json").read_bytes())["dependencies"]["@anthropic-ai/claude-agent-sdk"]
    return version


def _digest() -> str:
    return sha256(b"".join((SOURCE / name).read_bytes() for name in _PINNED)).hexdigest()


def _replace(source: Path, target: Path) -> None:
    """Copy a file in one step: a runner that starts meanwhile reads the old file or the new one."""
    content = source.read_bytes()
    if not target.is_file() or target.read_bytes() != content:
        partial = target.with_name(f".{target.name}.partial")
        partial.write_bytes(content)
        partial.replace(target)


@asynccontextmanager
async def _lock(path: Path) -> AsyncIterator[None]:
    """Hold the lock of the file ``path``. The kernel releases it when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(descriptor):  # noqa: ASYNC110 (another process holds it)
            await asyncio.sleep(_LOCK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _tell_progress() -> None:
    seconds = 0.0
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        seconds += _PROGRESS_SECONDS
        _tell(f"Still installing the Claude Agent SDK ({seconds:.0f} s) …")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
