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
_LISTS: Final = {
    "kinds": "list the kinds of agents, which need no file",
    "agents": "list the agents that have a file",
    "tools": "list the tools of the gateway",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options in ``arguments`` (default: those of the process), or exit with the usage of the command.

    argparse itself reports an unknown argument with the usage of the whole program.
    """
    options, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        advice = "" if unknown[0].startswith("-") or options.command != "ask" else ". Write the question in quotes"
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
    _add_ask(_add_command(commands, "ask", "ask one question; nothing is stored", _ASK_EXAMPLES))
    for name, text in _LISTS.items():
        _add_command(commands, name, text, f"\nexample:\n  spass {name}\n")
    chat = _add_command(commands, "chat", "talk to an agent in a session", _CHAT_EXAMPLES)
    chat.add_argument("--agent", metavar="NAME", help="an agent that has a file (default: the first of `spass agents`)")
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
    ask.add_argument("--tools", metavar="A,B", type=_names, help="the tools that the agent may use, separated by commas")
    ask.add_argument("--model", metavar="M", help="a chat model (default: the first that the token may use)")
    ask.add_argument("--system", metavar="TEXT", help="the system prompt")
    ask.add_argument(
        "--context", metavar="FILE", help="text that the agent may use; a .json file is the context object of POST /v1/ask"
    )
    ask.add_argument(
        "--param",
        metavar="K=V",
        action="append",
        type=_parameter,
        default=[],
        help="a parameter of the kind, such as max_turns=5; may be repeated",
    )
    ask.add_argument("--json", action="store_true", help="print the whole answer of POST /v1/ask as JSON")
    ask.add_argument("--no-stream", action="store_true", help="wait for the whole answer")
    ask.add_argument("text", metavar="TEXT|-", help="the question; - reads it from standard input")


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
