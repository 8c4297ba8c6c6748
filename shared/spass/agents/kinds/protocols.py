"""The text protocols: parse a reply into a tool call or a final answer, and write calls and results as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spass.agents.kinds.markers import FENCES, Marker, Scanner, shown_text
from spass.core.effects import VisibleAfter, user
from spass.core.messages import Message, Role


@dataclass(frozen=True, slots=True)
class Protocol:
    """The markers of a text protocol."""

    thought: str
    action: str
    input: str
    final: str
    observation: str = "Observation:"

    @property
    def show(self) -> VisibleAfter:
        """Return the filter that shows the final answer."""
        return VisibleAfter((self.final,), (self.observation,))


REACT: Final = Protocol("Thought:", "Action:", "Action Input:", "Final Answer:")
STRUCTURED: Final = Protocol("THOUGHT:", "TOOL:", "INPUT:", "FINAL_ANSWER:")


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as a reply has it. ``input`` is unparsed. ``is_marked`` is False if it had no marker of its own."""

    name: str
    input: str = ""
    is_marked: bool = True


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply that is an ``answer`` or a ``call``, or neither, if its markers do not form one. ``text`` are the words before the
    call, or all words."""

    answer: str | None = None
    call: WrittenCall | None = None
    text: str = ""


def parse_reply(text: str, protocol: Protocol) -> ParsedReply:
    """Parse a whole reply. A final answer counts more than calls, and only the first call counts. A reply without a marker is the
    answer, and so is a thought alone. The text from the first ``Observation:`` on is dropped: the model imagined it."""
    answer = shown_text(text, protocol.show)
    if answer is not None:
        return ParsedReply(answer)
    sections = _sections(text, protocol)
    markers = [section.marker for section in sections]
    calls = [place for place, section in enumerate(sections) if section.marker == protocol.action and _tool_name(section.text)]
    if calls and protocol.input not in markers[: calls[0]]:
        return ParsedReply(call=_call(sections[calls[0] :], protocol), text=_words(sections[: calls[0]], protocol))
    words = _words(sections, protocol)
    is_broken_call = protocol.action in markers or {protocol.thought, protocol.input} <= {*markers}
    is_answer = not is_broken_call and (words or not text.strip())
    return ParsedReply(words if is_answer else None, text=words)


def history_as_text(messages: Iterable[Message], protocol: Protocol) -> tuple[Message, ...]:
    """Return ``messages`` with tool calls and their results as text of ``protocol``. Each result follows its call."""
    output: list[Message] = []
    calls: dict[str, str] = {}  # call id → its text, for calls whose results have not come yet
    for message in messages:
        if message.role is Role.TOOL:
            if written := calls.pop(message.tool_call_id or "", ""):
                output.append(Message(Role.ASSISTANT, written))
            output.append(observation(message.content, protocol))
        elif message.role is Role.ASSISTANT and message.tool_calls:
            texts = [message.content, *[""] * (len(message.tool_calls) - 1)]
            for call, words in zip(message.tool_calls, texts, strict=True):
                calls[call.id] = write_call(words, call.name, call.arguments, protocol)
        elif message.role is Role.ASSISTANT:
            output += [Message(Role.ASSISTANT, f"{protocol.final} {message.content}")] if message.content else []
        else:
            output.append(message)
    return tuple(output)


def write_call(text: str, name: str, arguments: str, protocol: Protocol) -> str:
    """Return a tool call with the words before it as text of ``protocol``."""
    thought = f"{protocol.thought} {text}\n" if text else ""
    return f"{thought}{protocol.action} {name}\n{protocol.input} {arguments}"


def observation(text: str, protocol: Protocol) -> Message:
    """Return the message that tells the model the result of a call, as data."""
    return user(f"{protocol.observation} {text}", data=True)


@dataclass(frozen=True, slots=True)
class _Section:
    """The ``text`` that follows a marker of the protocol; ``written`` is the marker as the model wrote it. The text before the
    first marker is a section without a marker."""

    marker: str = ""
    written: str = ""
    emphasis: str = ""
    text: str = ""


def _sections(text: str, protocol: Protocol) -> list[_Section]:
    """Return the sections of ``text`` up to the first imagined observation."""
    markers = (protocol.thought, protocol.action, protocol.input, protocol.observation)
    scanner = Scanner(markers)
    sections = [_Section()]
    pieces: list[str] = []
    for piece in (*scanner.feed(text), *scanner.flush(), Marker(markers.index(protocol.observation), "")):
        if isinstance(piece, str):
            pieces.append(piece)
            continue
        sections[-1] = replace(sections[-1], text="".join(pieces))
        if markers[piece.number] == protocol.observation:
            break
        sections.append(_Section(markers[piece.number], piece.text, piece.emphasis))
        pieces = []
    return sections


def _call(sections: Sequence[_Section], protocol: Protocol) -> WrittenCall:
    name, rest = _tool_name(sections[0].text), _after_name(sections[0].text)
    for section in sections[1:]:
        if section.marker == protocol.action:
            break
        if section.marker == protocol.input:
            return WrittenCall(name, section.text.strip().removesuffix(section.emphasis))
    return WrittenCall(name, rest, is_marked=False)


def _words(sections: Sequence[_Section], protocol: Protocol) -> str:
    """Return the text of ``sections`` without markers, and without a fence around them of which only the start is there. An input
    outside of a call is ordinary text ("Input: 3, output: 4"), so it keeps its marker."""
    words = ""
    for section in sections:
        if section.marker == protocol.input:
            words += section.written + section.text
        else:
            words += section.emphasis + (section.text.lstrip(" \t") if section.marker else section.text)
    lines = words.split("\n")
    fences = [place for place, line in enumerate(lines) if line.lstrip().startswith(FENCES)]
    if len(fences) % 2 and len(sections) > 1:
        del lines[fences[-1]]
    return "\n".join(lines).strip()


def _tool_name(text: str) -> str:
    """Return the tool's name in an action: the first line, without quotes, emphasis, brackets and empty parentheses."""
    return text.strip().partition("\n")[0].strip(" \t\r*`\"'[]").removesuffix("()")


def _after_name(text: str) -> str:
    """Return what follows the line with the name, except for the end of a code fence."""
    rest = text.strip().partition("\n")[2].strip()
    return "" if rest in FENCES else rest
