"""The tool ``think``."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.core.text_checks import reject_blank
from spass.tools.base import Tool


class Think(Tool):
    """Gives you room to reason step by step before you act or answer. It looks nothing up, changes nothing and returns nothing.

    Use it when a task has several steps, when results of tools must be compared or checked, or when a rule must be weighed before
    an action. Write the whole thought into the call; do not use it for simple questions.
    Example: {"thought": "The invoice says 19 % tax, the contract 7 %. Check which of them is later before I answer."}.
    """

    category: ClassVar[str] = "reasoning"

    thought: Annotated[str, AfterValidator(reject_blank), Field(description="What you think, in as many words as it needs.")]

    async def run(self, _scope: Scope, /) -> Json:
        return {}
