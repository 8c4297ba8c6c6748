"""The Python interpreters of this machine that run the sandbox's child."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

VERSIONS: Final = ("3.11", "3.12", "3.13")


def _candidates(version: str) -> Iterator[str]:
    """Yield paths at which an interpreter may be: on the PATH, where systems install it, and beside the running one, as version
    managers do."""
    if found := shutil.which(f"python{version}"):
        yield found
    yield from (f"{folder}/python{version}" for folder in ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"))
    beside = Path(sys.base_prefix).parent
    yield from (str(path) for path in sorted(beside.glob(f"*{version}*/bin/python{version}")))


def _is_interpreter(path: str, version: str) -> bool:
    try:
        run = subprocess.run([path, "-S", "--version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.stdout.startswith(f"Python {version}.".encode())


def _find() -> dict[str, str]:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {running: sys.executable}
    for version in VERSIONS:
        path = next((path for path in _candidates(version) if version not in found and _is_interpreter(path, version)), None)
        if path is not None:
            found[version] = path
    return found


INTERPRETERS: Final[Mapping[str, str]] = _find()
"""The path of one interpreter for each version that was found. The running one is the first."""
