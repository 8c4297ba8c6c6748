"""Run an agent within a call of another agent: a nested turn without a session, whose calls are part of the outer stream."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from spass.agents.engine import Engine
from spass.agents.interrupt import end_open_calls
from spass.agents.registry import AgentRegistry
from spass.calls.scope import CallReports, Scope
from spass.core.errors import Internal, SpassError, StorageUnavailable
from spass.core.events import (
    Event,
    Failed,
    Nested,
    Outcome,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
)
from spass.redaction.log import failure_line, write_line
from spass.tools.base import ToolError
from spass.tools.builtin.delegate import Delegation
from spass.tools.grants import Grants
from spass.tools.results import waiting_results


@dataclass(frozen=True, slots=True)
class AgentDelegates:
    """Run the agents of the files as delegates. ``agents`` returns them; ``make run`` replaces them."""

    engine: Engine
    agents: Callable[[], AgentRegistry]

    async def run(self, scope: Scope, grants: Grants, agent: str, task: str) -> Delegation:
        """Let ``agent`` do ``task`` within the call of ``scope``, and return what it did.

        The agent has its own prompt, model, tools, paths and approvals, and the workspace, the user and the rights of the caller.
        If this is cancelled, the agent's model connection and its calls are closed.

        Raises:
            AgentNotFound: the agent does not exist, or no longer.
            ModelNotAllowed: the caller's token may not use its model.
            ToolError: the agent failed.
            StorageUnavailable: the outer turn cannot continue either.
        """
        spec = self.agents().get(agent)
        events = self.engine.run(scope.nested(), spec, task, nested_in=grants)
        collected = Outcome()
        try:
            await _follow(events, collected, scope.reports, agent)
        except StorageUnavailable:
            raise
        except SpassError as error:
            if isinstance(error, Internal):
                write_line(failure_line(error, scope.caller.request_id))
            raise _readable(error, agent, _delegation(collected)) from None
        return _delegation(collected)


async def _follow(events: AsyncGenerator[Event, None], collected: Outcome, reports: CallReports, agent: str) -> None:
    """Collect the ``events`` of the delegate and forward those of its calls. Each call that starts ends, whatever happens. Raise
    SpassError if the delegate failed."""
    with end_open_calls(reports.forward) as forward:
        async with aclosing(events):
            async for event in events:
                collected.add(event)
                match event:
                    case ToolCallStarted() | ToolProgress() | ToolCallFinished():
                        forward(Nested(agent, reports.call_id, event))
                    case Nested():
                        forward(event)
                    case Failed(error):
                        raise error
                    case _:  # it is the delegate's own, and its answer is the result of the call
                        pass


def _delegation(collected: Outcome) -> Delegation:
    return Delegation(
        collected.content,
        collected.finish_reason,
        tuple(version for tool in collected.tool_calls for version in tool.versions),
        tuple(approval for tool in collected.tool_calls for approval in waiting_results(tool)),
        tuple(approval for tool in collected.tool_calls for approval in tool.waiting),
    )


def _readable(error: SpassError, agent: str, done: Delegation) -> ToolError:
    """Return the failure of ``agent`` for the model of the caller, with what it had ``done`` before."""
    reason = "There was an error in the gateway." if isinstance(error, Internal) else error.message
    message = f"The agent '{agent}' failed. {reason}"
    if done.versions:
        message += f" Before that it had made these versions of the workspace: {', '.join(map(str, done.versions))}."
    if done.waiting:
        message += f" These approvals that it asked for still wait: {', '.join(done.waiting)}."
    return ToolError(message, code=error.code, waiting=done.waiting, versions=done.versions)
