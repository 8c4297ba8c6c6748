"""`spass managed`: agents that keep a mailbox, run when told to or by a schedule, and remember."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from spass.cli.input import read_text
from spass.cli.listing import print_rows
from spass.cli.stream_printer import StreamPrinter
from spass.cli.terminal import note, write
from spass.sdk import Spass, SpassApiError

JsonObject: TypeAlias = dict[str, Any]


def managed(client: Spass, options: argparse.Namespace) -> None:
    """Run the chosen action.

    Raises:
        UsageError: an argument, or what it names, is empty or cannot be read.
        SpassApiError: the gateway refused the request.
        SpassUnreachable: the gateway did not answer.
    """
    _ACTIONS[options.action](client, options)


def _create(client: Spass, options: argparse.Namespace) -> None:
    if options.schedule is None and (options.timezone, options.input) != (None, None):
        options.refuse("--timezone and --input belong to a schedule. Add --schedule EXPRESSION")
    schedule = {"expression": options.schedule, "timezone": options.timezone, "input": options.input}
    agent = client.managed.create(
        options.name,
        options.agent,
        model=options.model,
        tools=options.tools,
        system_prompt=options.system,
        params=dict(options.param) or None,
        schedule={name: value for name, value in schedule.items() if value is not None} or None,
    )
    _print_new(options, agent)


def _list(client: Spass, options: argparse.Namespace) -> None:
    agents = client.managed.list()
    if options.json:
        _print_all_json(agents)
    elif rows := [_row(agent) for agent in agents]:
        print_rows(rows)


def _row(agent: JsonObject) -> tuple[str, str, str, str, str]:
    schedule, error = agent.get("schedule"), agent.get("error")
    status = str(agent.get("status"))
    if isinstance(error, Mapping):
        status = f"{status} ({error.get('code')})"
    when = _when(schedule) if isinstance(schedule, Mapping) else ""
    return str(agent.get("id")), status, str(agent.get("agent")), str(agent.get("name")), when


def _when(schedule: Mapping[str, Any]) -> str:
    zone = schedule.get("timezone") or "UTC"
    words = [
        str(schedule.get("expression")),
        "" if zone == "UTC" else str(zone),
        "" if schedule.get("enabled", True) else "(disabled)",
    ]
    return " ".join(word for word in words if word)


def _send(client: Spass, options: argparse.Namespace) -> None:
    content = read_text(options.text, "message")
    if options.stream:
        _send_and_stream(client, options, content)
    else:
        message = client.managed.send(options.id, content)
        _print_new(options, message, f"The message waits for the next run. Start one: spass managed run {options.id}")


def _send_and_stream(client: Spass, options: argparse.Namespace, content: str) -> None:
    events = client.managed.stream(options.id, content)
    try:
        if options.json:
            _print_all_json(events)
        else:
            StreamPrinter().print_all(_as_turn(events))
    except SpassApiError as error:
        if error.status == HTTPStatus.OK:  # inside the stream, so the message is stored; a failed run leaves it pending
            error.add_note(f"The message is still in the mailbox. Start another run: spass managed run {options.id}")
        elif error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # before the stream; the message may be stored
            error.add_note(
                f"If the message is in the mailbox (spass managed messages {options.id}), do not send it again. "
                f"Start another run: spass managed run {options.id}"
            )
        raise


def _run(client: Spass, options: argparse.Namespace) -> None:
    run = client.managed.run(options.id, None if options.input is None else read_text(options.input, "input"))
    _print_new(options, run, f"The answer will be in the mailbox: spass managed messages {options.id}")


def _messages(client: Spass, options: argparse.Namespace) -> None:
    messages = client.managed.messages(options.id)
    if options.json:
        _print_all_json(messages)
        return
    for message in messages:
        sender = "agent" if message.get("direction") == "agent_to_user" else "you"
        pending = ", pending" if message.get("status") == "pending" else ""
        write(f"{sender}, {message.get('created_at')}{pending}:\n{message.get('content')}\n\n")


def _delete(client: Spass, options: argparse.Namespace) -> None:
    deleted = client.managed.delete(options.id)
    if options.json:
        _print_json({"deleted": deleted})
    else:
        note(f"{options.id} and its messages, runs, notes and schedule were deleted.")


_ACTIONS: Final[Mapping[str, Callable[[Spass, argparse.Namespace], None]]] = {
    "create": _create,
    "list": _list,
    "send": _send,
    "run": _run,
    "messages": _messages,
    "delete": _delete,
}


def _print_new(options: argparse.Namespace, created: JsonObject, advice: str | None = None) -> None:
    if options.json:
        _print_json(created)
        return
    write(f"{created['id']}\n")
    if advice is not None:
        note(advice)


def _print_json(value: JsonObject) -> None:
    write(json.dumps(value, ensure_ascii=False) + "\n")


def _print_all_json(values: Iterable[JsonObject]) -> None:
    for value in values:
        _print_json(value)


def _as_turn(events: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield the events of a managed run as those of a turn, which ``StreamPrinter`` prints."""
    step = 1
    for event in events:
        match event["type"]:
            case "chunk":
                yield from _chunk_as_turn(event, step)
            case "tool_calls":
                step += 1
                for call in event.get("calls") or ():
                    yield {"type": "status_update", "tool_call": {"tool": call.get("tool_name"), "args": call.get("arguments")}}
            case "tool_result":
                yield {"type": "tool_call", "tool": event.get("tool_name"), "result": event.get("output")}
            case _:  # future types
                pass


def _chunk_as_turn(chunk: JsonObject, step: int) -> Iterator[JsonObject]:
    for choice in chunk.get("choices") or ():
        if content := (choice.get("delta") or {}).get("content"):
            yield {"type": "token", "content": content, "step": step}
        if reason := choice.get("finish_reason"):
            early = "max_turns" if chunk.get("max_turns_exceeded") else "cancelled" if chunk.get("cancelled") else reason
            yield {"type": "done", "finish_reason": early}
