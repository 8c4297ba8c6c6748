"""The Lambda of several routes that share a warm cache: ``SPASS_ROUTES`` names their modules, separated by commas."""

import os

from fastapi import APIRouter

from spass.web.http_function import import_routers, lambda_handler

router = APIRouter()
for _route_file_router in import_routers(os.environ["SPASS_ROUTES"].split(",")):
    router.routes.extend(_route_file_router.routes)

handler = lambda_handler(router)
