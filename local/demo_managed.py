"""The managed agents of the demo: one streams a tool call and runs for its mailbox, another one runs by a schedule."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from local.demo_calls import DemoFailed, Walk

_AGENTS: Final = "/v1/managed-agents"
_SOON: Final = timedelta(seconds=10)  # a busy machine may need some for the request
_AGENT: Final = {"name": "demo-walk", "agent": "operative", "tools": ["calculator"]}


def schedule_agent(step: Walk) -> str:
    """Create a managed agent that a schedule will run once. Return its path."""
    step.title(f"24. A managed agent with a schedule, which fires in {_SOON.seconds} seconds")
    at = datetime.now(UTC) + _SOON
    schedule = {"expression": f"at({at:%Y-%m-%dT%H:%M:%S})", "input": "What is 2**10?"}
    return f"{_AGENTS}/{step.call('POST', _AGENTS, {**_AGENT, 'schedule': schedule})['id']}"


def show_scheduled_run(step: Walk, agent: str) -> None:
    """Wait for the run of the schedule, and delete the agent.

    Raises:
        DemoFailed: the schedule did not fire, or the answer is not in the mailbox.
    """
    step.title("29. The schedule has fired")
    step.note("The emulated scheduler looks every ten seconds for schedules that are due.")
    run = step.poll(f"{agent}/runs", lambda found: next(iter(found["runs"]), None))
    step.wait_for(f"{agent}/runs/{run['id']}", "The scheduled run did not succeed")
    _check_mailbox(step, agent, "2**10 = 1024")
    step.call("DELETE", agent)


def show_managed_agent(step: Walk) -> None:
    """Create a managed agent, stream a message to it, run it in the background, and delete it.

    Raises:
        DemoFailed: an event of the stream or a message in the mailbox is missing.
    """
    step.title("27. A managed agent streams its answer in OpenAI's format, with its tool calls")
    agent = f"{_AGENTS}/{step.call('POST', _AGENTS, _AGENT)['id']}"
    _stream(step, agent)
    step.title("28. A message waits in its mailbox until the agent runs in the background")
    step.call("POST", f"{agent}/messages", {"content": "What is 100 - 1?"})
    run = step.call("POST", f"{agent}/run")
    step.wait_for(f"{agent}/runs/{run['id']}", "The run did not succeed")
    _check_mailbox(step, agent, "1791 * 17 = 30447", "100 - 1 = 99")
    step.call("DELETE", agent)


def _stream(step: Walk, agent: str) -> None:
    frames = [*step.frames("POST", f"{agent}/messages", {"content": "What is 1791 * 17?", "stream": True})]
    names = [name for name, _ in frames if name]
    if names != ["tool_calls", "tool_result"] or frames[-1] != ("", "[DONE]"):
        raise DemoFailed("The stream should have one tool call with its result, and end with [DONE]")
    chunks: list[dict[str, Any]] = [json.loads(data) for name, data in frames[:-1] if not name]
    step.note(f"» {''.join(chunk['choices'][0]['delta'].get('content', '') for chunk in chunks)}")
    if chunks[-1]["choices"][0]["finish_reason"] != "stop":
        raise DemoFailed("The last chunk should have the finish reason stop")


def _check_mailbox(step: Walk, agent: str, *answers: str) -> None:
    messages = step.call("GET", f"{agent}/messages")["messages"]
    said = [message["content"] for message in messages if message["direction"] == "agent_to_user"]
    if said != [*answers] or {message["status"] for message in messages} != {"delivered"}:
        raise DemoFailed(f"The mailbox should have the answers {answers}, and every message should be delivered")
