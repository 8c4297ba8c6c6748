"""Write what status events tell people: names of agents and tools, and numbers. Arguments and results are in other events."""

from typing import Final

from spass.core.messages import FinishReason
from spass.core.run_result import RunResult

_MAX_NAME: Final = 64  # characters of the name of a tool, which a model may have invented
_MAX_PROGRESS: Final = 200  # characters of what a tool reports, which its event has as a whole
_ENDS: Final = {
    FinishReason.LENGTH: "{agent} used up the tokens of its reply",
    FinishReason.CONTENT_FILTER: "A filter ended the reply of {agent}",
    FinishReason.MAX_TURNS: "{agent} used up its model calls",
    FinishReason.CANCELLED: "{agent} was stopped",
    FinishReason.DEADLINE: "{agent} used up its time",
}


def planning_detail(agent: str) -> str:
    return f"{agent} begins to work."


def moving_detail(agent: str) -> str:
    return f"The session became too long. {agent} continues in a new one that begins with a summary."


def calling_detail(agent: str, tool: str, number: int = 1, of: int = 1) -> str:
    """Return the text for the start of a call: ``number`` of the calls that the agent makes at the same time."""
    place = f" (call {number} of {of})" if number <= of > 1 else ""
    return f"{agent} uses {_shorten(tool, _MAX_NAME)}{place}."


def progress_detail(progress: str) -> str:
    return _shorten(progress, _MAX_PROGRESS)


def end_detail(outcome: RunResult) -> str:
    """Return the text for the end of a run that succeeded: how it ended, and what it took."""
    end = _ENDS.get(outcome.finish_reason, "{agent} is done").format(agent=outcome.run.agent)
    spent = f"{end}: {_count(outcome.turns, 'model call')}, {_count(len(outcome.tools), 'tool call')}."
    waiting = sum(tool.approval is not None for tool in outcome.tools)
    if not waiting:
        return spent
    return f"{spent} {_count(waiting, 'call')} {'waits' if waiting == 1 else 'wait'} for a decision."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
