"""Run a conversation of the OpenHands SDK: one JSON request on stdin, one marked JSON answer on stdout.

This file is started by a Python that has the packages ``openhands-sdk`` and ``openhands-tools``, which need Python 3.12. It
imports nothing of the gateway.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_OUTPUT_START: Final = "---SPASS_OUTPUT_START---"
_OUTPUT_END: Final = "---SPASS_OUTPUT_END---"
_MAX_RESULTS: Final = 200
_MAX_RESULT_CHARACTERS: Final = 4000
_ENVIRONMENT: Final = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else litellm downloads it on import, and deadlocks without a network
}


def main() -> int:
    """Answer the request. Return the exit code: 1 after an error, whose message is the last line of stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the tools and their processes write to stderr; only this file writes the answer
    request = json.loads(sys.stdin.readline())
    os.environ.update(_ENVIRONMENT)
    os.environ.pop("LLM_API_KEY", None)  # commands that the agent runs do not need it
    try:
        answer = run(request)
    except Exception as error:  # noqa: BLE001 (every failure becomes one line)
        text = " ".join(str(error).split()) or "no message"
        print(f"{type(error).__name__}: {text}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    with os.fdopen(answers, "w", encoding="utf-8", errors="replace") as output:
        output.write(f"\n{_OUTPUT_START}\n{json.dumps(answer, ensure_ascii=False)}\n{_OUTPUT_END}\n")
    return 0


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to ``request``: the last message, the results of the tools, and what the SDK reports."""
    from openhands.sdk import LLM, Agent, AgentContext, Conversation, Tool
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool

    llm = LLM(
        model=_model(request),
        api_key=request["api_key"],
        base_url=request.get("base_url") or None,
        temperature=request.get("temperature"),
        max_output_tokens=request.get("max_tokens"),
        usage_id="agent",
    )
    # The terminal that needs no tmux server, which would be shared with other programs of the user.
    tools = [Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}), Tool(name=FileEditorTool.name)]
    context = AgentContext(system_message_suffix=request["system_prompt"]) if request.get("system_prompt") else None
    conversation = Conversation(
        agent=Agent(llm=llm, tools=tools, agent_context=context), workspace=request["workspace"], visualizer=None
    )
    try:
        conversation.send_message(request["prompt"])
        conversation.run()
        events = list(conversation.state.events)
        return {
            "content": last_message(events),
            "tool_results": list(tool_results(events))[-_MAX_RESULTS:],
            "metadata": {"status": _status(conversation), **_usage(conversation)},
        }
    finally:
        conversation.close()


def last_message(events: Sequence[Any]) -> str:
    """Return what the agent said last: its message, or the message of its call of ``finish``."""
    for event in reversed(events):
        if getattr(event, "source", None) != "agent":
            continue
        if getattr(event, "tool_name", None) == "finish" and getattr(event, "action", None) is not None:
            return str(event.action.message)
        if getattr(event, "llm_message", None) is not None:
            return _text(event.llm_message.content)
    return ""


def tool_results(events: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of the agent's own tools, except ``finish`` and ``think``."""
    arguments: dict[str, Any] = {}
    for event in events:
        call, tool = getattr(event, "tool_call_id", None), getattr(event, "tool_name", None)
        if call is None or tool in ("finish", "think"):
            continue
        if getattr(event, "action", None) is not None:
            arguments[call] = getattr(getattr(event, "tool_call", None), "arguments", None)
        elif getattr(event, "observation", None) is not None:
            observation = event.observation
            yield {
                "tool_name": tool,
                "arguments": _shorten(arguments.get(call) or "{}"),
                "content": _shorten(_text(observation.to_llm_content)),
                "success": not getattr(observation, "is_error", False),
            }
        elif isinstance(getattr(event, "error", None), str):
            yield {"tool_name": tool, "arguments": "{}", "content": _shorten(event.error), "success": False}


def _model(request: Mapping[str, Any]) -> str:
    """Return the name of the model for LiteLLM. At a base URL, a name without a provider is one of OpenAI's protocol."""
    model = str(request.get("model") or "")
    return f"openai/{model}" if request.get("base_url") and "/" not in model else model


def _text(content: Sequence[Any]) -> str:
    return "".join(part.text for part in content if isinstance(getattr(part, "text", None), str))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_RESULT_CHARACTERS else text[: _MAX_RESULT_CHARACTERS - 1] + "…"


def _status(conversation: Any) -> str:  # noqa: ANN401
    return str(getattr(conversation.state.execution_status, "value", conversation.state.execution_status))


def _usage(conversation: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the tokens and the cost that the SDK reports, if it does."""
    metrics = conversation.conversation_stats.get_combined_metrics()
    tokens = metrics.accumulated_token_usage
    usage = {} if tokens is None else {"prompt_tokens": tokens.prompt_tokens, "completion_tokens": tokens.completion_tokens}
    return {"usage": usage, "cost_usd": metrics.accumulated_cost}


if __name__ == "__main__":
    sys.exit(main())
