"""`python -m local.openapi` (`make openapi`): write docs/openapi.json and the tables of docs/routes.md from the routes."""

import json
from pathlib import Path
from typing import Final

from functions.meta.openapi import document
from local import route_tables

FILE: Final = Path(__file__).parents[1] / "docs" / "openapi.json"


def text() -> str:
    """Return the description as it is committed, so that a change of the contract shows as a change of a few lines."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    route_tables.FILE.write_text(route_tables.page(), encoding="utf-8")
