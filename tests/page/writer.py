"""A gateway whose model writes what a test lets it write, when the test lets it."""

import hashlib
import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import Gateway, running_gateway

TOKEN: Final = "writer-token"
OTHER_TOKEN: Final = "second-writer-token"
MAX_SILENCE: Final = 300.0  # seconds; longer than half of the longest outage
PAUSE: Final = 0.03  # seconds before each word of an answer to `words <number>`

_USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

_CONFIG: Final = """
llm:
  retries: 0
  backends:
    - {{name: writer, provider: openai, base_url: "{upstream}/v1", supported_models: [writer]}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: writer, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: writer}}
tenants:
  - id: page
    tokens: [{tokens}]
"""
_AGENTS: Final = {
    "poet": "name: poet\nmodel: writer\ndescription: Writes.\nsystem_prompt: Write.\ntools: [calculator]\n",
    "clerk": "name: clerk\nmodel: writer\ndescription: Answers.\nsystem_prompt: Answer.\n",
    "diary": "name: diary\nkind: operative\nmodel: writer\ndescription: Goes on.\nsystem_prompt: Write.\n",
}


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


@contextmanager
def serving_writer(folder: Path) -> Iterator[Writer]:
    """Serve a model and a gateway with it until the block ends. Its two tokens are ``TOKEN`` and ``OTHER_TOKEN``."""
    model = Model()
    tokens = ", ".join(
        f"{{id: {name}, sha256: {hashlib.sha256(token.encode()).hexdigest()}}}"
        for name, token in (("writer", TOKEN), ("second", OTHER_TOKEN))
    )
    with (
        serve_model(model.respond) as upstream,
        running_gateway(folder, _CONFIG.format(upstream=upstream, tokens=tokens), _AGENTS) as gateway,
    ):
        yield Writer(gateway, model)
