"""The lines that the editor's child writes. It is not trusted, so each line is validated."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from spass.core.messages import Role
from spass.sandbox.child_process import ChildFailed


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelRequest(_Line):
    """The child wants the model's answer to these messages: pairs of role and text."""

    type: Literal["ask"]
    messages: tuple[tuple[Literal[Role.SYSTEM, Role.USER, Role.ASSISTANT], str], ...]


class CreateRequest(_Line):
    """The child asks if it may create a file that the edit does not name."""

    type: Literal["may_edit"]
    path: str


class Progress(_Line):
    type: Literal["progress"]
    stage: Literal["applying", "correcting"]


class Result(_Line):
    """The edit is done. ``files``: the whole text of each file that was written."""

    type: Literal["result"]
    answer: str
    files: dict[str, str]


class Failed(_Line):
    """The edit cannot be made, for a reason that the model should know."""

    type: Literal["failed"]
    message: Annotated[str, Field(max_length=4000)]


class Crashed(_Line):
    """An error in the child: its type and place."""

    type: Literal["crashed"]
    error: Annotated[str, Field(max_length=400)]


class Blocked(_Line):
    """The child ended itself, because it tried to do what an edit never does."""

    type: Literal["blocked"]
    event: Annotated[str, Field(max_length=400)]


Line: TypeAlias = ModelRequest | CreateRequest | Progress | Result | Failed | Crashed | Blocked

_LINES: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def read_line(line: bytes) -> Line:
    """Return the validated line.

    Raises:
        ChildFailed: it is not one of the lines of an edit.
    """
    try:
        return _LINES.validate_json(line)
    except ValidationError:
        raise ChildFailed("wrote a line that is not part of an edit") from None
