"""Import time and memory of every function in a fresh interpreter, beside ``fastapi + mangum + boto3`` with nothing else.

    python -m bench.coldstart [--rounds N]

Rounds go over all functions in turn, so that a slow minute of the machine hurts all alike; the smallest time of each counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.routes import ROUTES, Permission

BASELINE: Final = "fastapi, mangum, boto3"
TO_REACH: Final = 1.3
ROOT: Final = Path(__file__).parent.parent
PROBE: Final = """
import json, resource, sys, time
began = time.perf_counter()
import {modules}
took = time.perf_counter() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([took * 1000, memory, [name for name in ("numpy", "httpx", "tokenizers") if name in sys.modules]]))
"""


@dataclass(slots=True)
class Probe:
    """One function's imports, measured again and again: milliseconds and MiB."""

    modules: str
    milliseconds: list[float] = field(default_factory=list)
    mebibytes: list[float] = field(default_factory=list)
    heavy: list[str] = field(default_factory=list)

    def measure(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}",
            "AWS_REGION": "eu-central-1",
            "AWS_DEFAULT_REGION": "eu-central-1",
        }
        command = [sys.executable, "-c", PROBE.format(modules=self.modules)]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
        took, memory, self.heavy = json.loads(done.stdout)
        self.milliseconds.append(took)
        self.mebibytes.append(memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each function (default 5)")
    rounds = parser.parse_args().rounds
    baseline = Probe(BASELINE)
    functions = {f"functions.{route.module}": Probe(f"functions.{route.module}") for route in ROUTES}
    for _ in range(rounds):
        for probe in (baseline, *functions.values()):
            probe.measure()
    base_time, base_memory = min(baseline.milliseconds), statistics.median(baseline.mebibytes)
    print(f"{'import':34} {'ms':>7} {'ratio':>6} {'MiB':>6} {'ratio':>6}  also imports")
    print(f"{BASELINE:34} {base_time:7.0f} {1:6.2f} {base_memory:6.0f} {1:6.2f}")
    worst = 0.0
    for name, probe in functions.items():
        took, memory = min(probe.milliseconds), statistics.median(probe.mebibytes)
        worst = max(worst, took / base_time)
        heavy = ", ".join(probe.heavy)
        print(f"{name:34} {took:7.0f} {took / base_time:6.2f} {memory:6.0f} {memory / base_memory:6.2f}  {heavy}")
    needing = {
        f"functions.{route.module}"
        for route in ROUTES
        if Permission.EMBEDDING in route.permissions or ".documents" in route.module
    }
    stray = sorted(name for name, probe in functions.items() if "numpy" in probe.heavy and name not in needing)
    print(f"\nworst ratio {worst:.2f} (to reach: {TO_REACH}); numpy imported without need by: {', '.join(stray) or 'none'}")


if __name__ == "__main__":
    main()
