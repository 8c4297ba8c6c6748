"""The log: lines of JSON on standard output, where CloudWatch and the laptop collect them."""

import json
import sys
from collections.abc import Mapping

from spass.core.messages import Json


def write_line(line: Mapping[str, Json]) -> None:
    """One line."""
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()
