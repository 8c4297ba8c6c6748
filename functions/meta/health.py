"""GET /healthz: the gateway answers."""

from typing import Literal

from spass.tenancy.response_model import ResponseModel
from spass.web.http_function import lambda_handler
from spass.web.public_routing import public_router

router = public_router()


class Health(ResponseModel):
    """The gateway is up."""

    status: Literal["ok"] = "ok"


@router.get("/healthz")
async def health() -> Health:
    """Answer that the gateway is up. This calls no other service."""
    return Health()


handler = lambda_handler(router)
