"""Tool calls of kinds that send no ``tools``: a prompt describes them, and the model writes its calls as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spass.agents.kinds.base import AgentContext, BaseAgent, CallFormat, Correction
from spass.agents.kinds.protocols import Protocol, WrittenCall, history_as_text, observation, parse_reply, write_call
from spass.agents.kinds.written_arguments import arguments_text
from spass.core.effects import Answer, AssistantReply, CallTools, Infer, ToolOutcome, user
from spass.core.json import dump
from spass.core.messages import CUT_OFF, Json, Message, Role, ToolCall, ToolSpec, replayable_name


@dataclass(frozen=True, slots=True)
class WrittenCalls(CallFormat):
    """Calls that the model writes as text.

    Every written call is made, also one of an unknown tool or with input that cannot be read: the toolbox answers it with an
    error that the model reads. A call in a reply that was cut off is dropped, because its input may be incomplete.
    """

    protocol: Protocol
    specs: Sequence[ToolSpec]

    def opening(self, agent: BaseAgent, input: str, context: AgentContext) -> tuple[Message, ...]:
        prompt = "\n\n".join(filter(str.strip, (agent.system_prompt, instructions(self.protocol, self.specs))))
        past = replace(context, conversation=history_as_text(context.conversation, self.protocol))
        return replace(agent, system_prompt=prompt).opening(input, past)

    def infer(self, messages: tuple[Message, ...]) -> Infer:
        return Infer(messages, "none", show=self.protocol.show)

    def read(self, reply: AssistantReply) -> Answer | CallTools | Correction:
        parsed = parse_reply(reply.content, self.protocol)
        if parsed.answer is not None and (parsed.answer or not reply.tool_calls):
            return Answer(parsed.answer)
        if reply.finish_reason in CUT_OFF:
            return Answer(parsed.text)
        if parsed.call is None:
            return Correction((*spoken(parsed.text), user(_how_to_continue(self.protocol))), parsed.text)
        return CallTools((to_tool_call(parsed.call, self.specs),), parsed.text)

    def record(self, reply: AssistantReply, step: CallTools, outcomes: Sequence[ToolOutcome]) -> tuple[Message, ...]:  # noqa: ARG002
        (call,), (outcome,) = step.calls, outcomes
        written = write_call(step.text or "", call.name, call.arguments, self.protocol)
        return (*spoken(written), observation(outcome.message.content, self.protocol))


def instructions(protocol: Protocol, specs: Sequence[ToolSpec]) -> str:
    """Return the part of the system prompt that describes the protocol and the tools."""
    if not specs:
        return f"Reply in this form:\n\n{protocol.thought} what you consider\n{protocol.final} your answer to the user"
    return f"""\
You can call tools, one in each reply. To call a tool, reply in this form and then stop:

{protocol.thought} what you consider
{protocol.action} the name of one tool
{protocol.input} its arguments as one JSON object

The next message then begins with "{protocol.observation}" and holds the tool's result. Never write an observation yourself.
When you know the answer, reply in this form:

{protocol.thought} what you consider
{protocol.final} your answer to the user

The tools are:

{describe_tools(specs)}"""


def describe_tools(specs: Sequence[ToolSpec]) -> str:
    """Return the name, category, description and parameters of each tool, for a prompt."""
    return "\n\n".join(map(_describe_tool, specs))


def _describe_tool(spec: ToolSpec) -> str:
    category = f" (category: {spec.category})" if spec.category else ""
    properties, required = spec.parameters.get("properties"), spec.parameters.get("required")
    names = required if isinstance(required, Sequence) else ()
    lines = [
        _describe_parameter(name, schema if isinstance(schema, Mapping) else {}, is_required=name in names)
        for name, schema in (properties.items() if isinstance(properties, Mapping) else ())
    ]
    return "\n".join((f"{spec.name}{category}: {spec.description}", "Parameters:" if lines else "Parameters: none", *lines))


def _describe_parameter(name: str, schema: Mapping[str, Json], *, is_required: bool) -> str:
    """Return one line: name, type, description, and whatever else its JSON Schema says, as JSON."""
    known = {key: value for key in ("type", "description") if isinstance(value := schema.get(key), str)}
    other = {key: value for key, value in schema.items() if key not in known}
    facts = [*filter(None, [known.get("type")]), "required" if is_required else "optional"]
    texts = [*filter(None, [known.get("description")]), *([dump(other)] if other else [])]
    return f"- {name} ({', '.join(facts)})" + (f": {' '.join(texts)}" if texts else "")


def to_tool_call(written: WrittenCall, specs: Sequence[ToolSpec]) -> ToolCall:
    """Return the call that the model wrote. The tool is found in any case. The name of an unknown tool becomes one that providers
    accept, because the history contains the call."""
    similar = [spec for spec in specs if spec.name.casefold() == written.name.casefold()]
    spec = next((spec for spec in similar if spec.name == written.name or len(similar) == 1), None)
    name = replayable_name(written.name) if spec is None else spec.name
    return ToolCall("", name, arguments_text(written.input, spec, is_marked=written.is_marked))


def spoken(text: str) -> tuple[Message, ...]:
    """Return what the model said as a message, if it said anything."""
    return (Message(Role.ASSISTANT, text),) if text else ()


def _how_to_continue(protocol: Protocol) -> str:
    return (
        f"{protocol.observation} Your reply has no answer and no complete call. Call a tool with "
        f'"{protocol.action}" and "{protocol.input}", or write your answer after "{protocol.final}".'
    )
