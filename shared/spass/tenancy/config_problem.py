"""Problems in the operator's files, and the names of these files in messages. The client needs this module, and has no YAML."""

from dataclasses import dataclass, replace
from pathlib import Path, PurePath


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem in a file, which is named as ``display_path`` does. ``line`` counts from 1; None means the whole file."""

    file: str
    line: int | None
    message: str

    def without_folder(self) -> "ConfigProblem":
        """Return the problem with only the name of its file. The log redacts paths, and the operator knows the folder."""
        return replace(self, file=PurePath(self.file).name)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


def display_path(path: Path) -> str:
    """Return ``path`` as messages for operators show it: relative to the current folder if it is inside, else as it is."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # outside, relative already, or the current folder was removed
        return str(path)
