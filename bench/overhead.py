"""Measure the latency that the gateway adds to a chat completion, in front of an upstream that answers at once.

    python -m bench.overhead [--requests N] [--rounds N] [--only NAME ...] [--against CHECKOUT [--pieces N]]

All targets in one interleaved run: the bare upstream, a minimal Starlette + httpx pass-through, LiteLLM's proxy, Portkey's
gateway, and ours with authentication, cost and audit on (the audit record goes to an emulated DynamoDB on this machine, in a
process of its own). Whole answers and streams, over 1 connection and over 16. Added latency is a target's median less the
upstream's. Requests per second per core are the reciprocal of the processor time that a target's processes take for a request.

With ``--against`` the gateway of this checkout is compared with that of another one instead (``bench.versions``).
"""

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import proxies, versions
from bench.load import LoadProfile, LoadResult, Target
from bench.processes import TOKEN, emulated_aws, served, write_config

KINDS: Final = (LoadProfile(False, 1), LoadProfile(False, 16), LoadProfile(True, 1), LoadProfile(True, 16))
TIMES_LITELLM: Final = 5.0
PART_OF_LITELLM: Final = 1 / 3
FIRST_WORD_MS: Final = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=480, help="requests of each kind to each target (default 480)")
    parser.add_argument("--rounds", type=int, default=10, help="in so many turns (default 10)")
    parser.add_argument("--only", nargs="*", default=[], help="only these targets, or requests with --against")
    parser.add_argument("--pieces", type=int, default=12, help="of a streamed answer with --against (default 12, the most)")
    parser.add_argument("--against", type=Path, help="compare with the gateway of this checkout")
    options = parser.parse_args()
    if options.against:
        versions.compare(options.against, options.requests, options.rounds, options.only, options.pieces)
        return
    with ExitStack() as stack:
        targets = start_targets(stack, options.only)
        for target in targets:
            for kind in KINDS:
                target.burst(kind, 32)
            target.figures.clear()
        for _ in range(options.rounds):
            for kind in KINDS:
                for target in targets:
                    target.burst(kind, options.requests // options.rounds)
    for kind in KINDS:
        report(kind, targets)
    if {"gateway", "litellm"} <= {target.name for target in targets}:
        compare({target.name: target for target in targets})


def start_targets(stack: ExitStack, only: list[str]) -> list[Target]:
    """Start the targets and return them, the upstream first."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    upstream = stack.enter_context(served("bench.upstream:upstream", {}))
    base = upstream.base
    token = {"Authorization": f"Bearer {TOKEN}"}
    targets = [Target("upstream", upstream, token)]

    def wanted(name: str) -> bool:
        return not only or name in only

    if wanted("pass-through"):
        passthrough = stack.enter_context(served("bench.upstream:passthrough", {"UPSTREAM": base}))
        targets.append(Target("pass-through", passthrough, token))
    if wanted("gateway"):
        environment = stack.enter_context(emulated_aws()) | write_config(folder, base)
        targets.append(Target("gateway", stack.enter_context(served("bench.gateway:app", environment)), token))
    if not proxies.installed():
        print("LiteLLM and Portkey are not installed (`make bench` does it); without them there is nothing to compare with.\n")
        return targets
    if wanted("litellm"):
        targets.append(Target("litellm", stack.enter_context(proxies.litellm(folder, base)), token))
    if wanted("portkey"):
        headers = {**token, **proxies.portkey_headers(base)}
        targets.append(Target("portkey", stack.enter_context(proxies.portkey()), headers))
    return targets


def report(kind: LoadProfile, targets: list[Target]) -> None:
    bare = targets[0].figures[kind]
    print(f"{kind}, {bare.requests} requests each")
    print(
        f"  {'target':14} {'p50 ms':>8} {'p99 ms':>8} {'added p50':>10} {'first word':>11} {'CPU ms/req':>11} {'req/s/core':>11}"
    )
    for target in targets:
        figures = target.figures[kind]
        p99 = statistics.quantiles(figures.milliseconds, n=100)[98]
        print(
            f"  {target.name:14} {p50(figures):8.2f} {p99:8.2f} {added(figures, bare):10.2f} "
            f"{statistics.median(figures.first_word):11.2f} {figures.processor_ms:11.2f} {figures.per_core_second:11.0f}"
        )
    print()


def compare(targets: dict[str, Target]) -> None:
    """Print each figure to reach and whether it is met."""
    for kind in KINDS:
        ours, theirs, bare = (targets[name].figures[kind] for name in ("gateway", "litellm", "upstream"))
        print(kind)
        times = theirs.processor_ms / ours.processor_ms
        format_result(
            f"{times:.1f} times LiteLLM's requests per second per core", f"{TIMES_LITELLM:.0f}", met=times >= TIMES_LITELLM
        )
        part = added(ours, bare) / added(theirs, bare)
        format_result(f"{part:.2f} of its added p50", f"under {PART_OF_LITELLM:.2f}", met=part < PART_OF_LITELLM)
        if kind.streaming and kind.connections == 1:
            later = statistics.median(ours.first_word) - statistics.median(bare.first_word)
            format_result(
                f"first word {later:.2f} ms after the upstream's", f"within {FIRST_WORD_MS:.0f}", met=later <= FIRST_WORD_MS
            )


def format_result(what: str, to_reach: str, *, met: bool) -> None:
    print(f"  {what} (to reach: {to_reach}): {'met' if met else 'NOT met'}")


def p50(figures: LoadResult) -> float:
    return statistics.median(figures.milliseconds)


def added(figures: LoadResult, bare: LoadResult) -> float:
    return p50(figures) - p50(bare)


if __name__ == "__main__":
    main()
