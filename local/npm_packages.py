"""Install the npm packages that a folder's ``package-lock.json`` pins.

    python -m local.npm_packages FOLDER [OPTION OF npm ci ...]

npm works in a temporary folder. Its ``node_modules`` takes the place of the old one only when it is whole.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from local.node import ROOT, NodeMissing, install_node, last_line, node_environment

_CACHE: Final = ROOT / ".cache"
_SCRATCH: Final = "npm-"
_PINS: Final = ("package.json", "package-lock.json")
_SETTINGS: Final = ".npmrc"
_OPTIONS: Final = (
    f"--cache={_CACHE / 'npm'}",  # the home may be read-only
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--fetch-retry-mintimeout=500",  # by default a missing network is noticed after more than a minute
    "--fetch-retry-maxtimeout=2000",
)


class NotInstalled(Exception):
    """The packages are not installed. The message says what to do."""


def install_packages(folder: Path, options: Sequence[str]) -> None:
    """Install the packages of ``folder``, and Node where it is missing.

    Raises:
        NodeMissing: there is no Node to do it with.
        NotInstalled: npm could not.
    """
    install_node()
    try:
        _CACHE.mkdir(exist_ok=True)
        with (_CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another `make` may be installing them
            for left in _CACHE.glob(f"{_SCRATCH}*"):  # by an installation that was killed
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=_CACHE) as scratch:
                _install(folder, Path(scratch), options)
    except OSError as error:
        raise NotInstalled(f"The npm packages cannot be installed in {folder}: {error}. Make the folder writable.") from error


def _install(folder: Path, scratch: Path, options: Sequence[str]) -> None:
    for name in _PINS:
        shutil.copyfile(folder / name, scratch / name)
    (scratch / _SETTINGS).symlink_to(folder / _SETTINGS)  # the operator's, if there are any, with a registry and its token
    command = ["npm", "ci", *_OPTIONS, *options]
    npm = subprocess.run(command, cwd=scratch, env=node_environment(), check=False, capture_output=True, text=True)
    if npm.returncode:
        raise NotInstalled(
            f"npm could not install the packages of {folder / _PINS[1]}. Check the network and npm's registry, and try again. "
            f"{_reason(npm.stderr)}"
        )
    installed = folder / "node_modules"
    if os.path.lexists(installed):
        installed.rename(scratch / "old")
    (scratch / "node_modules").rename(installed)


def _reason(errors: str) -> str:
    """Return npm's own first error. Its later lines say where its log is."""
    lines = [line.removeprefix("npm error").strip() for line in errors.splitlines() if line.startswith("npm error")]
    return next((line for line in lines if line and not line.startswith(("code ", "errno ", "syscall "))), last_line(errors))


def main() -> None:
    folder, *options = sys.argv[1:]
    try:
        install_packages(ROOT / folder, options)
    except (NodeMissing, NotInstalled) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
