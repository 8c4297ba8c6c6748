"""Run targets of the Makefile, which installs the CDK's pinned command line and gives it its Node and Python."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from typing import Final

from operate.checkout import ROOT

# The variables of an outer make would go to the inner one, and ARGS with them.
_OUTER_MAKE: Final = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")


def run(target: str, arguments: Sequence[str]) -> int:
    """Run ``target`` with these arguments and return its exit status. It prints what it does."""
    environment = {name: value for name, value in os.environ.items() if name not in _OUTER_MAKE}
    command = ["make", "--no-print-directory", target, f"ARGS={shlex.join(arguments).replace('$', '$$')}"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603
