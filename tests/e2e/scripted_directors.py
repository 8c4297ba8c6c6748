"""A scripted model server for the directors. It speaks Ollama's and Anthropic's forms, and records what it receives."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spass.calls.datamark import remove_marks
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.unit.models.wire_forms import WIRE_FORMS, WIRE_PATHS, Step, WireScript, call

OLLAMA_NAME: Final = "qwen2.5-coder:7b-instruct"
DOCSTRING: Final = '    """Greet the person whom the command line names."""\n'
_CONTENT_TYPES: Final = {"ollama": "application/x-ndjson", "anthropic": "text/event-stream"}
_HEAD: Final = "def main() -> None:\n"


def _delegate(agent: str, task: str) -> Step:
    return [call("delegate", {"agent": agent, "task": task})]


def _edit(message: str, *files: str) -> Step:
    return [call("aider_edit", {"message": message, "files": files}, piece=7)]


def _block(path: str, old: str, new: str) -> str:
    return f"Here it is.\n\n{path}\n```\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```\n"


CALLS: Final[Mapping[str, Sequence[Step]]] = {
    "What files are in src/?": [[call("list_directory", {"path": "src"})]],
    "What's in src/main.py?": ["I read it. ", [call("read_file", {"path": "src/main.py"}, piece=1)]],
    "What's in README.md?": ['{"name": "read_file", ', '"arguments": {"path": "README.md"}}'],
    "Add a docstring to main()": [_edit("Add a docstring to main()", "src/main.py")],
    "Release it": [
        "I ask three directors.",
        *(_delegate(f"dir-{lane}", task) for lane, task in (("code", "Add a docstring to main()"), ("docs", "Write the notes"))),
        _delegate("dir-devsecops", "Set the region"),
    ],
    "Write the notes": [_edit("Write the notes", "docs/notes.md")],
    "Set the region": [_edit("Set the region", "infra/main.tf")],
}
"""The steps that a question begins with. To any other, and when the results are there, the model answers with a text."""

EDITS: Final = {
    "Add a docstring to main()": _block("src/main.py", _HEAD, _HEAD + DOCSTRING),
    "Write the notes": _block("docs/notes.md", "", "# Notes\n"),
    "Set the region": _block("infra/main.tf", "", 'region = "eu-1"\n'),
}
"""The answers to Aider, by what it is asked for."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to the model. ``question`` is the last message of a user, and ``results`` are the results of all calls in the
    conversation, without the marks of data. ``is_answered`` tells that the last of them follow the question."""

    form: str
    body: Mapping[str, Any]
    question: str
    results: Sequence[Any]
    is_answered: bool

    @property
    def is_from_aider(self) -> bool:
        return not self.body.get("tools")


@dataclass
class ScriptedModel:
    requests: list[ModelRequest] = field(default_factory=list)

    def respond(self, request: HttpRequest) -> HttpAnswer:
        if request.method == "GET":
            return json_answer({"models": [{"name": OLLAMA_NAME}]})
        (form,) = [form for form in _CONTENT_TYPES if WIRE_PATHS[form] == request.path]
        received = _read(form, request.json)
        self.requests.append(received)
        return HttpAnswer(iter(WIRE_FORMS[form](WireScript(_steps(received)))), content_type=_CONTENT_TYPES[form])


def _steps(request: ModelRequest) -> Sequence[Step]:
    if request.is_from_aider:
        return [next(edit for message, edit in EDITS.items() if message in request.question)]
    if request.is_answered or request.question not in CALLS:
        return ["That is ", "all."]
    return CALLS[request.question]


def _read(form: str, body: Mapping[str, Any]) -> ModelRequest:
    entries = [*_texts(body["messages"])]
    questions = [text for role, text in entries if role == "user"]
    results = [json.loads(remove_marks(text)) for role, text in entries if role == "tool"]
    return ModelRequest(form, body, questions[-1], results, entries[-1][0] == "tool")


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of each message and result. Anthropic's results are blocks in a user's message."""
    for message in messages:
        if isinstance(message["content"], str):
            yield message["role"], message["content"]
            continue
        for block in message["content"]:
            if block["type"] == "text":
                yield message["role"], block["text"]
            elif block["type"] == "tool_result":
                yield "tool", block["content"]
