"""The grants of an agent's file to its tools: the workspace, the paths in it, and the calls that wait for a person's approval."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from spass.core.ids import WorkspaceId
from spass.workspaces.globs import Globs

DELETES: Final = "deletes"
"""The name in ``approval`` of every change of a workspace that removes or empties a file, or brings an older version back."""


def _check_pattern(pattern: str) -> str:
    Globs.parse(["**", pattern])  # "**", because a list in which every pattern excludes is refused as a whole
    return pattern


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    Globs.parse(patterns)
    return patterns


Patterns: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_check_pattern)], ...], Field(strict=False), AfterValidator(_check_patterns)
]


class _Section(BaseModel):
    """A part of an agent's file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PathPatterns(_Section):
    """The paths of the workspace that an agent's tools may read and write (``spass.workspaces.globs``)."""

    read: Patterns = ("**",)
    write: Patterns = ()


class EditorSettings(_Section):
    """``timeout`` is the number of seconds that one edit may take, ``format`` the form in which the model writes it: as blocks of
    changed lines, or as whole files."""

    timeout: Annotated[float, Field(ge=1, le=600)] = 300
    format: Literal["diff", "whole"] = "diff"


ALL_TO_READ: Final = PathPatterns()
DEFAULT_EDITOR: Final = EditorSettings()


@dataclass(frozen=True, slots=True)
class Grants:
    """The rights of the tools of one turn. ``workspace`` is None for an agent without one.

    ``approval`` are names of tools, and ``DELETES``. ``delegates`` are the agents that ``delegate`` may run.
    """

    workspace: WorkspaceId | None = None
    paths: PathPatterns = ALL_TO_READ
    approval: tuple[str, ...] = ()
    delegates: tuple[str, ...] = ()
    editor: EditorSettings = DEFAULT_EDITOR

    @property
    def read(self) -> Globs:
        """Return the paths that may be read."""
        return _parse(self.paths.read)

    @property
    def write(self) -> Globs:
        """Return the paths that may be changed."""
        return _parse(self.paths.write)


NO_GRANTS: Final = Grants()


@cache
def _parse(patterns: tuple[str, ...]) -> Globs:
    return Globs.parse(patterns)
