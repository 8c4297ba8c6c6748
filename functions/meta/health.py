"""GET /healthz: the gateway answers."""

from starlette.responses import Response

from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import public_router

router = public_router()


@router.get("/healthz")
async def health() -> Response:
    """Whether the gateway is up. It asks nobody else."""
    return json_response({"status": "ok"})


handler = lambda_handler(router)
