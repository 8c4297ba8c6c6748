"""The log: lines of JSON on standard output, where CloudWatch and the laptop collect them."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress

from spass.core.messages import Json


def write_line(line: Mapping[str, Json]) -> None:
    """One line. Where nobody reads the log any more, as behind a closed terminal, the work goes on without it."""
    with suppress(OSError):
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()
