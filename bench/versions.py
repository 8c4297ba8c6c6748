"""Compare the gateway of this checkout with that of another one, in one interleaved run over the same upstream and emulated AWS.

The processor time of a request decides, because latencies on one machine vary by more than the difference that matters. The
upstream streams without pauses. Each round creates the session of its turns.
"""

import json
import statistics
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.load import CHAT, LoadProfile, LoadResult, Target, Work
from bench.processes import ROOT, TOKEN, TOOLS_TOKEN, USER, RunningServer, emulated_aws, served, write_config

MAX_RATIO: Final = 1.03

_AGENT: Final = {"message": "What is two and two?"}
_USER: Final = {"SPASS-User-Id": USER}
_TOOLS_TENANT: Final = {"Authorization": f"Bearer {TOOLS_TOKEN}"}
_SESSION_TURN: Final = Work("an agent's turn in a session", "", _AGENT, _USER)

KINDS: Final = (
    LoadProfile(False, 1, replace(CHAT, name="chat")),
    LoadProfile(True, 1, replace(CHAT, name="chat")),
    LoadProfile(False, 1, replace(CHAT, name="chat with server tools", headers=_TOOLS_TENANT)),
    LoadProfile(True, 1, replace(CHAT, name="chat with server tools", headers=_TOOLS_TENANT)),
    LoadProfile(False, 1, Work("an agent's turn", "/a1/agents/bench/chat", _AGENT, _USER)),
    LoadProfile(False, 1, Work("an agent's turn with a tool", "/a1/agents/bench-tools/chat", _AGENT, _USER)),
    LoadProfile(False, 1, _SESSION_TURN),
)


def compare(checkout: Path, requests: int, rounds: int, only: Sequence[str] = (), pieces: int = 12) -> None:
    """Measure ``requests`` of each kind to both gateways and print the ratios of their processor times.

    ``only`` selects the kinds whose names have one of these words. The upstream streams each answer in ``pieces``.
    """
    kinds = [kind for kind in KINDS if not only or any(word in kind.work.name for word in only)]
    with ExitStack() as stack:
        targets = _start(stack, checkout.resolve(), pieces)
        for kind in kinds:
            for target in targets:
                burst(target, kind, 32)
        for target in targets:
            target.figures.clear()
        for number in range(rounds):
            for kind in kinds:
                for target in targets if number % 2 else reversed(targets):
                    burst(target, kind, requests // rounds)
    print(f"{'':44} {'CPU ms/request':>19} {'ratio':>7} {'p50 ms':>17} {'ratio':>7}")
    print(f"{'':44} {'before':>9} {'after':>9} {'':>7} {'before':>8} {'after':>8}")
    for kind in kinds:
        _report(kind, *(target.figures[kind] for target in targets))


def _start(stack: ExitStack, checkout: Path, pieces: int) -> list[Target]:
    """Start the gateway of ``checkout`` and ours, and return them in this order."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    upstream = stack.enter_context(served("bench.upstream:upstream", {"PAUSE": "0", "PIECES": str(pieces)}))
    environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream.base, with_tools=True)
    token = {"Authorization": f"Bearer {TOKEN}"}
    return [
        Target(name, stack.enter_context(served("bench.gateway:app", environment, root)), token)
        for name, root in (("before", checkout), ("after", ROOT))
    ]


def burst(target: Target, kind: LoadProfile, requests: int) -> None:
    """Send requests of ``kind``; turns of a session go to one that is created first."""
    if kind.work is _SESSION_TURN:
        path = f"/a1/agents/bench/sessions/{_create_session(target.served)}/messages"
        measured = replace(kind, work=replace(kind.work, path=path))
        target.figures[measured] = target.figures.setdefault(kind, LoadResult())
        target.burst(measured, requests)
    else:
        target.burst(kind, requests)


def _create_session(gateway: RunningServer) -> str:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **_USER}
    request = urllib.request.Request(f"{gateway.base}/a1/agents/bench/sessions", b"{}", headers)
    with urllib.request.urlopen(request) as response:
        session: str = json.load(response)["id"]
    return session


def _report(kind: LoadProfile, before: LoadResult, after: LoadResult) -> None:
    medians = [statistics.median(figures.milliseconds) for figures in (before, after)]
    ratio = after.processor_ms / before.processor_ms
    name = f"{kind.work.name}, {'streaming' if kind.streaming else 'blocking'}"
    print(
        f"{name:44} {before.processor_ms:9.2f} {after.processor_ms:9.2f} {ratio:7.3f} "
        f"{medians[0]:8.2f} {medians[1]:8.2f} {medians[1] / medians[0]:7.3f}  "
        f"{'met' if ratio <= MAX_RATIO else 'NOT met'} (at most {MAX_RATIO})"
    )
