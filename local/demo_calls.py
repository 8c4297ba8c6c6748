"""The calls of the demo: each is printed with its answer, and a call that fails ends the demo."""

import json
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from spass.cli.terminal import write

_ASK: Final = "/v1/ask"
_WIDTH: Final = 600  # characters of a body that are shown
_JOB_SECONDS: Final = 120
_POLL_SECONDS: Final = 0.2


class DemoFailed(Exception):
    """Raised when a call fails or an answer does not follow from the ingested documents."""


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event of a stream. Only a stream that can be followed has ids."""

    id: str | None
    data: dict[str, Any]


class Walk:
    """The calls of the demo, printed as they happen."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def title(self, text: str) -> None:
        _print(f"\n=== {text}")

    def note(self, text: str) -> None:
        _print(f"\n  {text}")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, print it and its answer, and return the answer's JSON."""
        _print(f"\n→ {method} {path}" + (f"\n  {_abbreviate(body)}" if body is not None else ""))
        return self._read(self._client.request(method, path, json=body, follow_redirects=True))

    def send_file(self, method: str, path: str, content_type: str, file: bytes) -> dict[str, Any]:
        """Send a file as the body of a request, print the request and its answer, and return the answer's JSON."""
        _print(f"\n→ {method} {path}\n  ({content_type}, {len(file)} bytes)")
        return self._read(self._client.request(method, path, content=file, headers={"Content-Type": content_type}))

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        """Print an answer, and return its JSON.

        Raises:
            DemoFailed: it is an error.
        """
        request = answer.request
        for hop in answer.history:
            _print(f"← {hop.status_code}\n→ {request.method} {hop.headers['Location']}")
        cost = answer.headers.get("SPASS-Cost-Usd")
        _print(f"← {answer.status_code}" + (f", {cost} USD" if cost else ""))
        payload: dict[str, Any] = answer.json()
        _print(f"  {_abbreviate(payload)}")
        if answer.is_error:
            raise DemoFailed(f"{request.method} {request.url.path} was answered with {answer.status_code}")
        return payload

    def ask(self, path: str, message: str, *, expect: str, tool: str | None = None) -> dict[str, Any]:
        """Ask an agent and return its reply.

        Raises:
            DemoFailed: the answer does not contain ``expect``, or the agent did not call ``tool``.
        """
        reply = self.call("POST", path, {"message": message})
        content = reply["message"]["content"]
        _print(f"\n  {message}\n  » {content}")
        if expect.lower() not in content.lower():
            raise DemoFailed(f"The answer should say '{expect}': {content}")
        used = [call["name"] for call in reply["tool_calls"]]
        if tool is not None and tool not in used:
            raise DemoFailed(f"The agent should call its tool {tool}; it called {used or 'none'}")
        return reply

    def ask_kind(self, request: Mapping[str, Any], *, expect: str, uses: Collection[str] | None = None) -> None:
        """Send ``request`` to ``POST /v1/ask``. ``uses`` are the tools that the agent must call, by default those of the request.

        Raises:
            DemoFailed: the answer does not contain ``expect`` or has another kind, or the agent did not call exactly these tools.
        """
        answer = self.call("POST", _ASK, request)
        used = [result["tool_name"] for result in answer["tool_results"]]
        self._check(request, answer, answer["content"], used, expect, request.get("tools", ()) if uses is None else uses)

    def stream_kind(self, request: Mapping[str, Any], *, expect: str) -> None:
        """Send ``request`` to ``POST /v1/ask`` for a stream, and print its events as they arrive.

        Raises:
            DemoFailed: as for ``ask_kind``, or the stream does not begin with ``planning`` and end with ``done``.
        """
        request = {**request, "stream": True}
        events = [event.data for event in self.stream("POST", _ASK, request)]
        if not events or events[0].get("status") != "planning" or events[-1]["type"] != "done":
            raise DemoFailed(f"The stream should begin with planning and end with done; it had {len(events)} events")
        tokens = [event for event in events if event["type"] == "token"]
        content = "".join(token["content"] for token in tokens if token["step"] == tokens[-1]["step"])
        used = [event["tool"] for event in events if event["type"] == "tool_call"]
        self._check(request, events[-1], content, used, expect, request.get("tools", ()))

    def stream(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
        prints_tokens: bool = True,
    ) -> Generator[StreamedEvent, None, None]:
        """Send a request, and yield the events of its stream, printed as they arrive, tokens only with ``prints_tokens``. With
        ``after``, the stream continues after the event with this id. Close the generator to close the connection.

        Raises:
            DemoFailed: the request was refused.
        """
        for frame in self._frames(method, path, body, after):
            event = StreamedEvent(frame.get("id"), json.loads(frame["data"]))
            if prints_tokens or event.data["type"] != "token":
                _print(f"  {event.id + ' ' if event.id else ''}{_abbreviate(event.data)}")
            yield event

    def frames(self, method: str, path: str, body: Mapping[str, Any]) -> Generator[tuple[str, str], None, None]:
        """Send a request, and yield name (or an empty string) and data of each event of its stream, printed as they arrive.

        Raises:
            DemoFailed: the request was refused.
        """
        for frame in self._frames(method, path, body, None):
            name, data = frame.get("event", ""), frame["data"]
            _print(f"  {name + ' ' if name else ''}{_abbreviate_text(data)}")
            yield name, data

    def _frames(
        self, method: str, path: str, body: Mapping[str, Any] | None, after: str | None
    ) -> Generator[Mapping[str, str], None, None]:
        """Yield the fields of each event that has data."""
        _print(f"\n→ {method} {path}" + (f"\n  {_abbreviate(body)}" if body is not None else ""))
        headers = {"Last-Event-ID": after} if after is not None else {}
        for name, value in headers.items():
            _print(f"  {name}: {value}")
        with self._client.stream(method, path, json=body, headers=headers) as answer:
            _print(f"← {answer.status_code}")
            if answer.is_error:
                raise DemoFailed(f"{method} {path} was answered with {answer.status_code}")
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                fields[name] = value
                if not line and "data" in fields:
                    yield fields
                if not line:
                    fields = {}

    def _check(
        self,
        request: Mapping[str, Any],
        answer: Mapping[str, Any],
        content: str,
        used: Sequence[str],
        expect: str,
        tools: Collection[str],
    ) -> None:
        _print(f"\n  {request['input']}\n  » {content}")
        if expect.lower() not in content.lower():
            raise DemoFailed(f"The answer should say '{expect}': {content}")
        if set(used) != set(tools):
            raise DemoFailed(f"The agent should call {', '.join(tools) or 'no tool'}; it called {', '.join(used) or 'none'}")
        if answer["kind"] != request["agent"]:
            raise DemoFailed(f"The kind should be {request['agent']}; it is {answer['kind']}")

    def upload(self, index: str, filename: str, content_type: str, file: bytes) -> dict[str, Any]:
        """Upload a file with a presigned form, and wait until the gateway has ingested it."""
        uploads = f"/a1/rag/indices/{index}/uploads"
        ticket = self.call("POST", uploads, {"filename": filename, "content_type": content_type, "size": len(file)})
        _print(f"\n→ POST {ticket['url']}\n  (a form: the fields, then the file of {len(file)} bytes; no token)")
        # The form needs no token, so this request does not use the client with the token.
        response = httpx.post(
            ticket["url"],
            data=ticket["fields"],
            files={"file": (filename, file, content_type)},
            timeout=60,
            trust_env=False,
        )
        _print(f"← {response.status_code}")
        if response.is_error:
            raise DemoFailed(f"The bucket refused the file with {response.status_code}")
        return self.wait_for(f"{uploads}/{ticket['upload_id']}", "The file did not become documents")

    def compact(self, session: str) -> dict[str, Any]:
        """Compact a session and return the result. Poll its job if the gateway answers before the compaction ends."""
        answer = self.call("POST", f"{session}/compact")
        if "status" not in answer:
            return answer
        result: dict[str, Any] = self.wait_for(f"/a1/jobs/{answer['job_id']}", "The session was not compacted")["result"]
        return result

    def wait_for(self, path: str, failure: str) -> dict[str, Any]:
        """Poll the work at ``path`` until it has succeeded, print its progress, and return it.

        Raises:
            DemoFailed: the work failed or took over two minutes; the message is ``failure``.
        """
        _print(f"\n→ GET {path}")
        last_progress = ""
        until = time.monotonic() + _JOB_SECONDS
        while time.monotonic() < until:
            work: dict[str, Any] = self._client.get(path).raise_for_status().json()
            if (progress := _abbreviate(work)) != last_progress:
                last_progress = progress
                _print(f"← {progress}")
            if work["status"] == "succeeded":
                return work
            if work["status"] == "failed":
                raise DemoFailed(failure)
            time.sleep(_POLL_SECONDS)
        raise DemoFailed(f"{failure} within {_JOB_SECONDS} s")

    def poll(self, path: str, find: Callable[[dict[str, Any]], dict[str, Any] | None]) -> dict[str, Any]:
        """Poll ``path`` until ``find`` returns something, and return it.

        Raises:
            DemoFailed: it took over two minutes.
        """
        until = time.monotonic() + _JOB_SECONDS
        while time.monotonic() < until:
            if (found := find(self._client.get(path).raise_for_status().json())) is not None:
                return found
            time.sleep(_POLL_SECONDS)
        raise DemoFailed(f"Nothing happened at {path} within {_JOB_SECONDS} s")

    def tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a server tool, and return its result."""
        result: dict[str, Any] = self.call("POST", "/v1/tools/execute", {"name": name, "arguments": arguments})["result"]
        return result


def _print(text: str) -> None:
    """Print ``text``, without control characters in a terminal: it may contain words of a model."""
    write(f"{text}\n")


def _abbreviate(body: object) -> str:
    return _abbreviate_text(json.dumps(body, ensure_ascii=False))


def _abbreviate_text(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} … ({len(text)} characters)"
