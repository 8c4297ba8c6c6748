"""Text of a caller in which a model sees at least one character."""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from spass.agents.spec import MessageText
from spass.calls.defence import is_blank


def _reject_invisible(text: str) -> str:
    if is_blank(text):
        raise ValueError("must hold a visible character")
    return text


VisibleText: TypeAlias = Annotated[MessageText, AfterValidator(_reject_invisible)]
