"""A gateway whose model writes what a test lets it write, when the test lets it."""

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import Gateway, running_site
from tests.e2e.sites import Entry, Site, chat_model, tenant, token

TOKEN: Final = "writer-token"
OTHER_TOKEN: Final = "second-writer-token"
MAX_SILENCE: Final = 300.0  # seconds; longer than half of the longest outage
PAUSE: Final = 0.03  # seconds before each word of an answer to `words <number>`

_USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass
class Story:
    """An answer that a test writes piece by piece."""

    pieces: "queue.Queue[str | None]" = field(default_factory=queue.Queue)

    def write(self, text: str) -> None:
        self.pieces.put(text)

    def end(self) -> None:
        self.pieces.put(None)

    def __iter__(self) -> Iterator[str]:
        with suppress(queue.Empty):  # a test that ended without the answer's end
            while (piece := self.pieces.get(timeout=MAX_SILENCE)) is not None:
                yield piece


@dataclass
class Model:
    """A provider in OpenAI's format. To ``words 100`` it answers slowly with a hundred words, to a question of ``stories`` as the
    test writes, to ``calculate`` by a call of the calculator, and to any other question at once."""

    stories: dict[str, Story] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)

    def begin(self, question: str) -> Story:
        """Let the test write the next answer to this question."""
        self.stories[question] = Story()
        return self.stories[question]

    def respond(self, body: Body) -> Completion:
        question = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
        self.questions.append(question)
        if not body.get("stream"):
            return Completion({"content": "A summary."}, usage=_USAGE)
        if question.startswith("calculate") and body["messages"][-1]["role"] == "user":
            function = {"name": "calculator", "arguments": json.dumps({"expression": question.removeprefix("calculate ")})}
            return Completion({"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}, usage=_USAGE)
        if question in self.stories:
            return Completion({"content": ""}, usage=_USAGE, pieces=self.stories.pop(question))
        if question.startswith("words "):
            words = [f"word{number} " for number in range(int(question.split()[1]))]
            return Completion({"content": ""}, usage=_USAGE, pieces=words, pause=PAUSE)
        text = f"You said: {question}."
        return Completion({"content": text}, usage=_USAGE, pieces=[text])


@dataclass
class Writer:
    """A gateway with the agents poet (calls the calculator), clerk and diary (an operator), and their model."""

    gateway: Gateway
    model: Model

    @property
    def url(self) -> str:
        return self.gateway.url

    def history(self, agent: str, user: str = "ada") -> list[list[tuple[str, str]]]:
        """Return role and text of the messages of each of the user's sessions, the newest session first."""
        with self.gateway.client(TOKEN, user) as client:
            path = f"/a1/agents/{agent}/sessions"
            sessions = client.get(path).raise_for_status().json()["sessions"]
            pages = [client.get(f"{path}/{session['id']}/messages").raise_for_status().json() for session in sessions]
        return [[(message["role"], message["content"]) for message in page["messages"]] for page in pages]


def writer_site(model: Model) -> Site:
    """Return the agents poet, clerk and diary, whose model is ``model``, for a tenant with two tokens."""
    agents: list[Entry] = [
        {"name": "poet", "model": "writer", "description": "Writes.", "system_prompt": "Write.", "tools": ["calculator"]},
        {"name": "clerk", "model": "writer", "description": "Answers.", "system_prompt": "Answer."},
        {"name": "diary", "model": "writer", "description": "Goes on.", "system_prompt": "Write.", "kind": "operative"},
    ]
    tenants = [tenant("page", token(TOKEN), token(OTHER_TOKEN))]
    return Site("writer", model_handler(model.respond), [chat_model("writer")], agents, tenants)


@contextmanager
def serving_writer(folder: Path) -> Iterator[Writer]:
    """Serve a model and a gateway with it alone until the block ends, for a test that restarts it."""
    model = Model()
    with running_site(folder, writer_site(model)) as gateway:
        yield Writer(gateway, model)
