"""`spass chat`: a conversation with an agent, in a session that the gateway keeps."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from spass.cli.input import UsageError
from spass.cli.stream_printer import StreamPrinter
from spass.cli.terminal import is_terminal, note
from spass.sdk import Spass, SpassApiError

_EXIT: Final = "/exit"
_SESSION: Final = "/session"
_PROMPT: Final = "> "


def chat(client: Spass, agent: str | None, report: Callable[[SpassApiError], None]) -> bool:
    """Send each line of the input as a message until an empty line, ``/exit`` or the end. Return True if it ended by an error.

    In a terminal, an error answer is reported and the chat goes on.
    """
    conversation = Conversation(client, agent or _first_agent(client))
    note(f"agent: {conversation.agent}. /session shows the session, an empty line ends the chat.")
    while (line := _read_line()) and line != _EXIT:
        try:
            conversation.read(line)
        except SpassApiError as error:
            report(error)
            if error.code == "agent_not_found":
                note("`spass agents` lists the agents. A kind has no sessions; ask it with `spass ask --agent KIND`.")
            if not is_terminal(sys.stdin):
                return True
    return False


class Conversation:
    """The messages of one chat. Its session is created by the first message."""

    def __init__(self, client: Spass, agent: str) -> None:
        self.agent = agent
        self._client = client
        self._session: str | None = None

    def read(self, line: str) -> None:
        """Run a command, or send a message and print the answer."""
        command, _, argument = line.partition(" ")
        if command == _SESSION:
            self._session = argument.strip() or self._session
            note(f"session: {self._session or 'none yet; the first message creates it'}")
        elif line.startswith("/"):
            note(f"{command} is not a command. Use /session, /session ID or /exit.")
        else:
            self._send(line)

    def _send(self, message: str) -> None:
        if self._session is None:
            self._session = str(self._client.create_session(self.agent)["id"])
        printer = StreamPrinter()
        printer.print_all(self._client.send(self.agent, self._session, message))
        successor = printer.done.get("session_id")  # a compaction replaces the session by a successor
        if isinstance(successor, str) and successor:
            self._session = successor


def _first_agent(client: Spass) -> str:
    agents = client.agents()
    if not agents:
        raise UsageError("The gateway has no agents. Add a file to its folder of agents.")
    return agents[0].name


def _read_line() -> str:
    """Return the next line without blanks around it: empty at the end of the input."""
    try:
        if is_terminal(sys.stdin) and is_terminal(sys.stdout):
            with suppress(ImportError):  # Windows has no such module
                import readline  # noqa: F401 (input() then edits lines)
            return input(_PROMPT).strip()
        return sys.stdin.readline().strip() if sys.stdin else ""
    except EOFError:
        return ""
    except UnicodeDecodeError:
        raise UsageError("the standard input is not UTF-8.") from None
