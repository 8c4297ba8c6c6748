"""Files and functions that a message passes, and the functions that are called from a room below theirs.

    python -m bench.layers [--files]

A message of ``POST /c1/…/chat`` to a new session, and a run of a managed agent that a message starts: the agent calls a tool and
answers. The gateway runs in this process with a scripted model and stores in memory. A first message loads what a process loads
once; the second is traced. Files and functions are those of ``shared/spass`` in which code ran. A function is called upwards if
its room stands above that of its caller (``pyproject.toml``). ``services`` is the composition root: what it hands to the rooms
below it to be created on first use is counted apart.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import httpx

from bench.bus import script
from bench.processes import ROOT, TOKEN, USER, silence_logs, write_config
from functions.managed import create as create_managed
from functions.managed import message_send
from functions.streams import create as create_stream
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices, gateway_client
from spass.testing.model import ScriptedModel
from spass.web.services import Settings

LIBRARY: Final = str(ROOT / "shared" / "spass") + os.sep
SERVICES: Final = "web/services.py"
TABLE: Final = sys.stdout  # the gateway logs to standard output too, which is redirected


def room_levels() -> Mapping[str, int]:
    """Return the level of each room: 0 is the highest. Rooms beside each other have the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers: list[str] = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return {room.strip().removeprefix("spass."): level for level, rooms in enumerate(layers) for room in rooms.split("|")}


@dataclass(slots=True)
class Trace:
    """The files and the calls that a trace recorded."""

    levels: Mapping[str, int] = field(default_factory=room_levels)
    files: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    upwards: set[str] = field(default_factory=set)

    def __enter__(self) -> "Trace":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (path := _path(frame)) is None or frame.f_code.co_name == "<module>":
            return
        name = f"{path}:{frame.f_code.co_qualname.replace('.<locals>', '')}"
        self.files.add(path)
        self.functions.add(name)
        caller = _path(frame.f_back) if frame.f_back is not None else None
        if caller is not None and self._level(path) < self._level(caller):
            self.upwards.add(f"{name}, called by {caller}")

    def _level(self, path: str) -> int:
        return self.levels.get(path.partition(os.sep)[0], len(self.levels))


def _path(frame: FrameType) -> str | None:
    """Return the path of the frame's code below the library, or None if it is elsewhere or serves tests."""
    path = frame.f_code.co_filename
    if not path.startswith(LIBRARY) or path.startswith(f"{LIBRARY}testing"):
        return None
    return path.removeprefix(LIBRARY)


async def trace(client: httpx.AsyncClient, path: str, bodies: Sequence[Mapping[str, object]], last: str) -> Trace:
    """Send messages. Return the trace of the last one, whose stream must contain ``last``."""
    *earlier, body = bodies
    for first in earlier:
        (await client.post(path, json=first)).raise_for_status()
    with Trace() as traced:
        sent = await client.post(path, json=body)
    if last not in sent.raise_for_status().text:
        raise SystemExit(f"the stream did not end well: {sent.text[-500:]}")
    return traced


async def measure(*, files: bool) -> None:
    """Print the figures of both messages."""
    question = "What is 6*7?"
    chat = {"messages": [{"role": "user", "content": question}]}
    agent = {"name": "bench", "agent": "operative", "model": "bench-model", "tools": ["calculator"]}
    with tempfile.TemporaryDirectory() as folder:
        environment = write_config(Path(folder), "http://nowhere.invalid", with_tools=True)
        settings = Settings.from_environment({**os.environ, **environment})
        services = ScriptedServices(settings, ScriptedModel(script), MemoryAws())
        routers = [create_stream.router, create_managed.router, message_send.router]
        async with gateway_client(routers, services, TOKEN) as client:
            client.headers["SPASS-User-Id"] = USER
            created = (await client.post("/v1/managed-agents", json=agent)).raise_for_status().json()
            chats = [{**chat, "message_id": f"message-{number}"} for number in (1, 2)]
            messages = [{"content": question, "stream": True}] * 2
            of_chat = await trace(client, "/c1/agents/bench-tools/chat", chats, '"done"')
            of_run = await trace(client, f"/v1/managed-agents/{created['id']}/messages", messages, "[DONE]")
    report("a message of POST /c1/…/chat", of_chat, files=files)
    report("a run of a managed agent", of_run, files=files)


def report(name: str, traced: Trace, *, files: bool) -> None:
    created = [call for call in traced.upwards if call.startswith(SERVICES)]
    others = sorted(traced.upwards - set(created))
    names = {call.partition(",")[0] for call in others}
    print(f"{name}: {len(traced.files)} files, {len(traced.functions)} functions", file=TABLE)
    print(f"  {len(names)} called upwards, and {len(created)} of the composition root", file=TABLE)
    for line in others:
        print(f"    {line}", file=TABLE)
    for path in sorted(traced.files) if files else ():
        print(f"    {path}", file=TABLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="print the files too")
    options = parser.parse_args()
    with silence_logs():
        asyncio.run(measure(files=options.files))


if __name__ == "__main__":
    main()
