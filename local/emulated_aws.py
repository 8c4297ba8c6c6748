"""The ASGI app of the emulated AWS: ministack behind the front. `local.emulator` runs it and sets its variables."""

import json
import os

from ministack.app import app as ministack  # type: ignore[import-untyped]

from local.aws_front import FRONT_VARIABLE, AwsFront
from local.signatures import AccessKey


def _app() -> AwsFront:
    settings = json.loads(os.environ.pop(FRONT_VARIABLE))
    key = AccessKey(settings["key_id"], settings["secret"])
    return AwsFront(
        ministack,
        key=key,
        hosts=settings["hosts"],
        origins=settings["origins"],
        region=settings["region"],
        templates=settings["templates"],
    )


app = _app()
