"""The managed agent of the demo: it streams a tool call, and runs in the background with what is in its mailbox."""

import json
from typing import Any, Final

from local.demo_calls import DemoFailed, Walk

_AGENTS: Final = "/v1/managed-agents"
_AGENT: Final = {"name": "demo-walk", "agent": "operative", "tools": ["calculator"]}


def show_managed_agent(step: Walk) -> None:
    """Create a managed agent, stream a message to it, run it in the background, and delete it.

    Raises:
        DemoFailed: an event of the stream or a message in the mailbox is missing.
    """
    step.title("26. A managed agent streams its answer in OpenAI's format, with its tool calls")
    agent = f"{_AGENTS}/{step.call('POST', _AGENTS, _AGENT)['id']}"
    _stream(step, agent)
    step.title("27. A message waits in its mailbox until the agent runs in the background")
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
