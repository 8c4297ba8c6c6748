"""The arguments of the command line. This module imports nothing of the client, so that ``--help`` is fast."""

import argparse
import json
from collections.abc import Sequence
from typing import Final

_ENVIRONMENT: Final = """
environment:
  SPASS_URL     the gateway (default: http://127.0.0.1:3000)
  SPASS_TOKEN   your token; a gateway on this machine needs none
  SPASS_USER    your user id; a gateway on this machine needs none

exit codes: 0 success, 1 error answer, 2 usage, 3 no gateway, 130 interrupted
"""
_EXAMPLES: Final = """
examples:
  spass ask "Say hello" --agent simple
  spass ask --tools calculator,think "What is sqrt(144)?"
  spass chat --agent researcher
  spass managed send agt_… --stream "What is new?"
"""
_ASK_EXAMPLES: Final = """
examples:
  spass ask "What is the capital of France?"
  spass ask --agent react --tools calculator --param max_turns=5 "What is 1791 * 17?"
  spass ask --agent researcher "Who built Sanssouci?"
  spass ask --context notes.md "Summarise my notes"
  spass ask --agent rlm --context access.log "How many lines mention an error?"
  git diff | spass ask --system "You review code." -
  spass ask --json "Hello" | jq .usage
"""
_CHAT_EXAMPLES: Final = """
Each line is a message. /session shows the session, and /session ID continues another one. An empty line, /exit or the end of the
input ends the chat. The gateway keeps the session.

examples:
  spass chat --agent researcher
  printf 'My name is Ada.\\nWhat is my name?\\n' | spass chat --agent researcher
"""
_JOB_EXAMPLES: Final = """
The agent gets the card as your message, in a session of its own. If you interrupt the command, the agent goes on.

examples:
  spass job --agent dir-code --title "Document the entry point" --file src/main.py "Add a docstring to main()."
  spass job --agent architect --title "Release notes" --acceptance "Each change has a line." - < task.md
"""
_MANAGED_EXAMPLES: Final = """
A managed agent belongs to you. It keeps its conversation and a mailbox, and runs when you say so or by a schedule. `spass managed
COMMAND --help` explains each command. docs/managed.md tells how to change and pause agents, and to follow and stop runs.

examples:
  ID=$(spass managed create reporter --agent operative)
  spass managed send $ID --stream "What is 2+2?"
  spass managed send $ID "Remember the meeting at 10." && spass managed run $ID
  spass managed messages $ID
"""
_CREATE_EXAMPLES: Final = """
The command prints the agent's id. A schedule is written as for EventBridge Scheduler: rate(…), cron(…) with six fields, or at(…).

examples:
  spass managed create reporter --agent operative --tools calculator
  spass managed create daily --agent researcher --schedule "cron(0 8 * * ? *)" --timezone Europe/Berlin --input "What is new?"
"""
_SEND_EXAMPLES: Final = """
Without --stream the message waits in the mailbox for the next run.

examples:
  spass managed send agt_… --stream "What is 2+2?"
  git log -5 | spass managed send agt_… -
"""
_RUN_EXAMPLES: Final = """
A run takes the waiting messages and then its own input. It is executed in the background, and its answer arrives in the mailbox.

examples:
  spass managed run agt_…
  spass managed run agt_… --input "What is new?" --json
"""
_MESSAGES_EXAMPLES: Final = """
examples:
  spass managed messages agt_…
  spass managed messages agt_… --json | jq -r .content
"""
_LISTS: Final = {
    "kinds": "list the kinds of agents, which need no file",
    "agents": "list the agents that have a file",
    "tools": "list the tools of the gateway",
}
_TEXTS: Final = {"ask": "question", "job": "task", "send": "message"}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options in ``arguments`` (default: those of the process), or exit with the usage of the command.

    argparse itself reports an unknown argument with the usage of the whole program.
    """
    options, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        text = _TEXTS.get(getattr(options, "action", options.command))
        advice = f". Write the {text} in quotes" if text and not unknown[0].startswith("-") else ""
        options.refuse(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    return options


def build_parser() -> argparse.ArgumentParser:
    """Return the parser. ``command`` of its result is the chosen command."""
    parser = argparse.ArgumentParser(
        prog="spass",
        description="Ask the agents of a Spass gateway.",
        epilog=_EXAMPLES + _ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_ask(_add_command(commands, "ask", "ask one question; nothing is stored, except for operators", _ASK_EXAMPLES))
    for name, text in _LISTS.items():
        _add_command(commands, name, text, f"\nexample:\n  spass {name}\n")
    chat = _add_command(commands, "chat", "talk to an agent in a session", _CHAT_EXAMPLES)
    chat.add_argument("--agent", metavar="NAME", help="an agent that has a file (default: the first of `spass agents`)")
    _add_job(_add_command(commands, "job", "give an agent a task in the form of a job card", _JOB_EXAMPLES))
    _add_managed(_add_command(commands, "managed", "agents that keep a mailbox and may have a schedule", _MANAGED_EXAMPLES))
    return parser


def _add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, epilog: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=epilog + _ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(refuse=command.error)
    return command


def _add_ask(ask: argparse.ArgumentParser) -> None:
    ask.add_argument(
        "--agent", metavar="KIND|NAME", default="orchestrator", help="a kind, or an agent that has a file (default: orchestrator)"
    )
    _add_choice(ask)
    ask.add_argument(
        "--context", metavar="FILE", help="text that the agent may use; a .json file is the context object of POST /v1/ask"
    )
    ask.add_argument("--json", action="store_true", help="print the whole answer of POST /v1/ask as JSON")
    ask.add_argument("--no-stream", action="store_true", help="wait for the whole answer")
    ask.add_argument("text", metavar="TEXT|-", help="the question; - reads it from standard input")


def _add_choice(command: argparse.ArgumentParser) -> None:
    """Add the options that change how a kind works."""
    command.add_argument("--tools", metavar="A,B", type=_names, help="the tools that the agent may use, separated by commas")
    command.add_argument("--model", metavar="M", help="a chat model (default: the first that the token may use)")
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    command.add_argument(
        "--param",
        metavar="K=V",
        action="append",
        type=_parameter,
        default=[],
        help="a parameter of the kind, such as max_turns=5; may be repeated",
    )


def _add_job(job: argparse.ArgumentParser) -> None:
    job.add_argument("--agent", metavar="NAME", required=True, help="an agent that has a file, such as dir-code")
    job.add_argument("--title", metavar="TEXT", required=True, help="what the task is about, in at most 200 characters")
    job.add_argument("--file", metavar="PATH", action="append", default=[], help="a file of the workspace; may be repeated")
    job.add_argument(
        "--acceptance", metavar="LINE", action="append", default=[], help="what must hold when it is done; may be repeated"
    )
    job.add_argument("--model", metavar="M", help="a chat model in place of the agent's")
    job.add_argument("--workspace", metavar="W", help="the workspace (default: the agent's)")
    job.add_argument("text", metavar="TASK|-", help="the task; - reads it from standard input")


def _add_managed(managed: argparse.ArgumentParser) -> None:
    actions = managed.add_subparsers(dest="action", metavar="COMMAND", required=True)
    create = _add_action(actions, "create", "create a managed agent", _CREATE_EXAMPLES)
    create.add_argument("name", metavar="NAME", help="a name for you; it need not be unique")
    create.add_argument("--agent", metavar="KIND|NAME", required=True, help="a kind, or an agent that has a file")
    _add_choice(create)
    create.add_argument("--schedule", metavar="EXPRESSION", help='when it runs, such as "rate(1 hour)"')
    create.add_argument("--timezone", metavar="ZONE", help="the time zone of the schedule (default: UTC)")
    create.add_argument("--input", metavar="TEXT", help="the input of each scheduled run")
    _add_action(actions, "list", "list your managed agents, newest first", "\nexample:\n  spass managed list\n")
    send = _add_action(actions, "send", "send a message to a managed agent", _SEND_EXAMPLES, of_agent=True)
    send.add_argument("--stream", action="store_true", help="run the agent at once and print its answer as it arrives")
    send.add_argument("text", metavar="TEXT|-", help="the message; - reads it from standard input")
    run = _add_action(actions, "run", "run a managed agent in the background", _RUN_EXAMPLES, of_agent=True)
    run.add_argument("--input", metavar="TEXT|-", help="text that follows the waiting messages; - reads it from standard input")
    _add_action(actions, "messages", "show the mailbox of a managed agent, oldest first", _MESSAGES_EXAMPLES, of_agent=True)
    example = "\nexample:\n  spass managed delete agt_…\n"
    _add_action(actions, "delete", "delete a managed agent and all that belongs to it", example, of_agent=True)


def _add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, epilog: str, *, of_agent: bool = False
) -> argparse.ArgumentParser:
    action = _add_command(actions, name, text, epilog)
    action.add_argument("--json", action="store_true", help="print the gateway's answer as JSON; of a list, one entry in a line")
    if of_agent:
        action.add_argument("id", metavar="ID", help="the agent's id (agt_…), as `spass managed list` shows it")
    return action


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parameter(text: str) -> tuple[str, object]:
    """Return the name and the value of ``name=value``. A value that is JSON is read as JSON; any other is a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' has no value. Write NAME=VALUE, for example max_turns=5")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
    except RecursionError:
        raise argparse.ArgumentTypeError(f"the value of '{name}' is nested too deeply") from None
