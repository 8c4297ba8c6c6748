"""`python -m tests.drill`: a restore on a history with planted losses, in an emulator of its own."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.drill.drill import Drill
from tests.integration.conftest import REGION, running_emulator


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        (home := Path(folder, "ministack")).mkdir()
        with running_emulator(home) as emulator:
            access = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
            os.environ |= {"AWS_ENDPOINT_URL": emulator.endpoint, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, **access}
            problems = asyncio.run(Drill.begin(Path(folder)).take())
    print("\n".join(problems) or "Each loss is back or named, and the second restore changed nothing.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
