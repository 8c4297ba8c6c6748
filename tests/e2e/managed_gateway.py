"""A started gateway with managed agents, its upstream, and the scheduler and the queue of its emulated AWS."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import httpx

from spass.managed.schedules import SCHEDULED_TIME
from spass.testing.http_server import HttpAnswer
from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import WAIT_SECONDS, Gateway, running_site, wait_until
from tests.e2e.sites import Site, chat_model, tenant, token

TOKEN: Final = "managed-token"
NEIGHBOUR: Final = "neighbour-token"
AGENTS: Final = "/v1/managed-agents"
ARGUMENTS: Final = '{"expression":"2+2"}'
RESULT: Final = '{"expression":"2+2","result":4}'
_NETWORK_PIECE: Final = 7
"""Bytes in which the upstream sends a tool call."""


@dataclass
class Upstream:
    """A model that answers "About: " and the question.

    It calls the calculator before it answers a question with "2+2", and in every step of one with "for ever". A question with
    "broken" fails while ``is_broken``. The answer to one with "hold" waits for ``release``.
    """

    requests: list[Body] = field(default_factory=list)
    is_broken: bool = True
    release: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: Body) -> Completion | HttpAnswer:
        self.requests.append(request)
        last = request["messages"][-1]
        question = next(message["content"] for message in reversed(request["messages"]) if message["role"] == "user")
        calls = "2+2" in question and last["role"] == "user"
        if "hold" in question and not calls:
            assert self.release.wait(WAIT_SECONDS)
        if "broken" in question and self.is_broken:
            return HttpAnswer(b'{"error": {"message": "No."}}', status=500)
        if calls or "for ever" in question:
            return HttpAnswer(_call_in_pieces(), content_type="text/event-stream")
        return Completion({"role": "assistant", "content": f"About: {question}"})

    def asked(self, question: str) -> list[Body]:
        """Return the requests that end with this question."""
        return [request for request in self.requests if request["messages"][-1]["content"] == question]


def _call_in_pieces() -> Iterator[bytes]:
    """Yield a streamed call of the calculator. Each chunk has one character of the arguments, and no piece is a whole line."""
    call: Body = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": ""}}
    deltas: list[Body] = [{"role": "assistant", "content": "Let me see. "}, {"tool_calls": [call]}]
    deltas += ({"tool_calls": [{"index": 0, "function": {"arguments": character}}]} for character in ARGUMENTS)
    choices: list[Body] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head: Body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    chunks: list[Body] = [*({**head, "choices": [choice]} for choice in choices), {**head, "choices": [], "usage": usage}]
    text = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    yield from (text[at : at + _NETWORK_PIECE] for at in range(0, len(text), _NETWORK_PIECE))


@dataclass
class EmulatedAws:
    """The clients of the emulated AWS of a gateway, which has another address after each start."""

    gateway: Gateway
    region: Final[str] = "eu-central-1"

    def client(self, service: str) -> Any:
        return self.gateway.aws_client(service)

    def entries(self, agent: str) -> list[Mapping[str, Any]]:
        """Return the entries of the scheduler whose ticks run ``agent``."""
        scheduler = self.client("scheduler")
        names = [(one["GroupName"], one["Name"]) for one in scheduler.list_schedules()["Schedules"]]
        found = [scheduler.get_schedule(GroupName=group, Name=name) for group, name in names]
        for entry in found:
            del entry["ResponseMetadata"]
        return [entry for entry in found if agent in entry["Target"].get("Input", "")]

    def put_entry(self, entry: Mapping[str, Any]) -> None:
        """Create an entry that ``entries`` has returned before."""
        names = ("GroupName", "Name", "ScheduleExpression", "ScheduleExpressionTimezone", "State", "FlexibleTimeWindow", "Target")
        self.client("scheduler").create_schedule(**{name: entry[name] for name in names})

    def delete_entry(self, entry: Mapping[str, Any]) -> None:
        self.client("scheduler").delete_schedule(GroupName=entry["GroupName"], Name=entry["Name"])

    def tick(self, entry: Mapping[str, Any], at: str) -> None:
        """Send what EventBridge Scheduler sends for ``entry`` at the time ``at``."""
        body = entry["Target"]["Input"]
        assert SCHEDULED_TIME in body
        sqs = self.client("sqs")
        sqs.send_message(QueueUrl=self._queue(entry), MessageBody=body.replace(SCHEDULED_TIME, at))

    def is_drained(self, entry: Mapping[str, Any]) -> bool:
        """Return True if no message to the queue of ``entry`` waits or is worked on."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = self.client("sqs").get_queue_attributes(QueueUrl=self._queue(entry), AttributeNames=names)["Attributes"]
        return {counts[name] for name in names} == {"0"}

    def _queue(self, entry: Mapping[str, Any]) -> str:
        name = entry["Target"]["Arn"].rpartition(":")[2]
        return str(self.client("sqs").get_queue_url(QueueName=name)["QueueUrl"])

    def accept_runs(self, *, enabled: bool) -> None:
        """Let the worker of runs take messages from its queue, or stop it from that."""
        functions = self.client("lambda")
        (mapping,) = functions.list_event_source_mappings(FunctionName="spass-local-worker-runs")["EventSourceMappings"]
        functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=enabled)

    def sweep(self) -> Mapping[str, Any]:
        """Run the hourly sweep now. Return what it has done."""
        answer = self.client("lambda").invoke(FunctionName="spass-local-worker-sweep", Payload=b"{}")
        assert "FunctionError" not in answer
        counts: Mapping[str, Any] = json.loads(answer["Payload"].read())
        return counts


@dataclass
class Managed:
    """A gateway, its upstream, and the requests of one user."""

    gateway: Gateway
    upstream: Upstream
    token: str = TOKEN

    @cached_property
    def aws(self) -> EmulatedAws:
        return EmulatedAws(self.gateway)

    @cached_property
    def http(self) -> httpx.Client:
        return self.gateway.client(self.token)

    def send(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        return self.http.request(method, f"{AGENTS}{path}", json=body, headers=headers)

    def get(self, path: str) -> Any:
        return self.send("GET", path).raise_for_status().json()

    def create(self, **fields: object) -> str:
        reply = self.send("POST", "", {"name": "Ada's", "agent": "simple", **fields})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def put_message(self, agent: str, content: str) -> None:
        reply = self.send("POST", f"/{agent}/messages", {"content": content})
        assert (reply.status_code, reply.json()["status"]) == (202, "pending"), reply.text

    def stream(self, agent: str, content: str) -> httpx.Response:
        return self.send("POST", f"/{agent}/messages", {"content": content, "stream": True})

    def start_run(self, agent: str, **body: object) -> str:
        reply = self.send("POST", f"/{agent}/run", body)
        assert (reply.status_code, reply.json()["trigger"]) == (202, "run"), reply.text
        return str(reply.json()["id"])

    def follow(self, agent: str, run: str, last: str | None = None, seen: threading.Event | None = None) -> httpx.Response:
        """Read the stream of a run to its end, from its start or after the event ``last``. Set ``seen`` at its first event."""
        headers = {} if last is None else {"Last-Event-ID": last}
        with (
            self.gateway.client(TOKEN) as http,
            http.stream("GET", f"{AGENTS}/{agent}/runs/{run}/stream", headers=headers) as reply,
        ):
            body = b""
            for piece in reply.iter_bytes():
                body += piece
                if seen is not None and b"id: " in body:
                    seen.set()
        return httpx.Response(reply.status_code, headers=reply.headers, content=body)

    def run_to_its_end(self, agent: str, run: str) -> Any:
        """Wait until a run is over and return it."""
        wait_until(lambda: self.get(f"/{agent}/runs/{run}")["finished_at"] is not None)
        return self.get(f"/{agent}/runs/{run}")

    def mailbox(self, agent: str) -> list[tuple[str, str, str]]:
        """Return the direction, the content and the status of each message."""
        messages = self.get(f"/{agent}/messages")["messages"]
        return [(message["direction"], message["content"], message["status"]) for message in messages]


@contextmanager
def managed_gateway(folder: Path) -> Iterator[Managed]:
    """Run a gateway and its upstream until the block ends."""
    upstream = Upstream()
    tenants = [tenant("plant", token(TOKEN)), tenant("neighbour")]
    with running_site(folder, Site("plant", model_handler(upstream.answer), [chat_model("small")], tenants=tenants)) as gateway:
        managed = Managed(gateway, upstream)
        with managed.http:
            yield managed
