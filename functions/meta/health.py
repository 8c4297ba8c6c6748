"""GET /healthz: the gateway answers."""

import os
from typing import Literal

from spass.tenancy.response_model import ResponseModel
from spass.web.http_function import lambda_handler
from spass.web.public_routing import public_router

router = public_router()


class Health(ResponseModel):
    """The gateway is up. ``release`` is the commit that was deployed, or ``unknown``."""

    status: Literal["ok"] = "ok"
    release: str


@router.get("/healthz")
async def health() -> Health:
    """Answer that the gateway is up, with the commit that it is. This calls no other service."""
    return Health(release=os.environ.get("SPASS_RELEASE", "unknown"))


handler = lambda_handler(router)
