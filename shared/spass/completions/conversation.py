"""Read the messages of a chat as what an agent answers: a message of the user, and the conversation before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spass.calls.defence import is_blank
from spass.completions.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage, WireMessage, WireToolCall
from spass.core.effects import user
from spass.core.errors import InvalidRequest
from spass.core.messages import Message, Role


@dataclass(frozen=True, slots=True)
class Conversation:
    """``input`` is the text of the last message, and ``earlier`` are the messages before it."""

    earlier: tuple[Message, ...]
    input: str


def read_conversation(messages: Sequence[WireMessage]) -> Conversation:
    """Return the conversation of ``messages``, in which only the agent instructs: system messages are the user's words.

    The agent has tools of its own. So a result of another tool is text that is marked as data, and names its call.

    Raises:
        InvalidRequest: the last message is not the user's or is blank, or a message has an image.
    """
    last = messages[-1]
    if not isinstance(last, UserMessage | SystemMessage):
        raise InvalidRequest(
            f"An agent answers the user: the last message must have the role 'user', not '{last.role}'.", param="messages"
        )
    *earlier, question = _read(messages)
    if is_blank(question.content):
        raise InvalidRequest("The last message is blank. Send the question to the agent there.", param="messages")
    kept = (message for message in earlier if not is_blank(message.content))
    return Conversation(tuple(kept), question.content)


def _read(messages: Sequence[WireMessage]) -> Iterator[Message]:
    calls: dict[str, WireToolCall] = {}
    for message in messages:
        match message:
            case ToolMessage():
                called = calls[message.tool_call_id].function  # every result follows its call (``check_tool_answers``)
                yield user(f"Result of the call {called.name} {called.arguments}:\n{message.content}", data=True)
            case SystemMessage():
                yield user(message.content)
            case AssistantMessage():
                calls = {call.id: call for call in message.tool_calls or ()}
                yield Message(Role.ASSISTANT, message.content or message.refusal or "")
            case UserMessage():
                read = message.message()
                if read.parts:
                    raise InvalidRequest(
                        "Agents read text only. Remove the images from messages, or send them to a model that is not an agent.",
                        param="messages",
                    )
                yield user(read.content)
