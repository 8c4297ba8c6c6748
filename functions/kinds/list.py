"""GET /v1/kinds: the agent kinds."""

import asyncio
from typing import Annotated

from fastapi import Depends

from spass.agents.parameters import KindList, list_all_kinds
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router
from spass.web.services import Services, get_services

router = api_router()


@router.get("/v1/kinds")
async def list_kinds(services: Annotated[Services, Depends(get_services)]) -> KindList:
    """List all agent kinds, with the parameters that an agent's file and `POST /v1/ask` accept."""
    return await asyncio.to_thread(list_all_kinds, services.availability.reason)  # it may ask interpreters for their versions


handler = lambda_handler(router)
