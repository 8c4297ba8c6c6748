"""The tool ``current_datetime``."""

from datetime import UTC, datetime
from typing import Annotated, ClassVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.core.text_checks import reject_blank
from spass.tools.base import Tool, ToolError


class CurrentDatetime(Tool):
    """Returns the current date, time and day of the week. Use it whenever an answer depends on today's date or the time of day.

    Example: {"timezone": "Europe/Berlin"} returns {"timezone": "Europe/Berlin", "datetime": "2026-04-30T10:14:22+02:00",
    "date": "2026-04-30", "time": "10:14:22", "weekday": "Thursday", "utc_offset": "+02:00"}.
    """

    category: ClassVar[str] = "time"

    timezone: Annotated[
        str, Field(max_length=64, description="An IANA time zone such as Europe/Berlin or America/New_York; UTC if left out.")
    ] = "UTC"

    async def run(self, _scope: Scope, /) -> Json:
        moment = datetime.now(UTC).astimezone(_load_zone(self.timezone)).replace(microsecond=0)
        iso_text = moment.isoformat()
        return {
            "timezone": self.timezone,
            "datetime": iso_text,
            "date": moment.date().isoformat(),
            "time": moment.time().isoformat(),
            "weekday": moment.strftime("%A"),
            "utc_offset": iso_text[19:],
        }


def _load_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # ZoneInfo raises OSError for a directory of the zone database ("Europe") and for a name that is too long for a file, and
    # ValueError for a path outside the database.
    except (KeyError, ValueError, OSError):
        raise ToolError(
            f"There is no time zone {name[:64]!r}. Use an IANA name such as Europe/Berlin, America/New_York or UTC.",
            code="unknown_timezone",
        ) from None


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
