"""Name the commit of a checkout. This module imports the standard library only: the synthesis and the laptop use it too."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
UNKNOWN: Final = "unknown"
_DIRTY: Final = "-dirty"


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with the sources. ``commit`` is ``unknown`` without git. ``changed`` are the files that differ from it."""

    commit: str
    changed: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        """Return the name of what is built from this checkout: the commit, with ``-dirty`` if files are changed."""
        return f"{self.commit}{_DIRTY}" if self.changed else self.commit


def read_checkout(root: Path = ROOT) -> Checkout:
    """Return the checkout in ``root``. An ignored file is not a change."""
    commit = read_commit(root)
    if commit == UNKNOWN:
        return Checkout(UNKNOWN)
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".") or ""
    return Checkout(commit, tuple(line[3:] for line in status.splitlines()))


def read_commit(root: Path = ROOT) -> str:
    """Return the commit that is checked out, or ``unknown`` without git or outside a checkout."""
    return (_git(root, "rev-parse", "HEAD") or UNKNOWN).strip()


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it cannot answer for ``root`` itself: the folder may lie in another checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", *arguments]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
