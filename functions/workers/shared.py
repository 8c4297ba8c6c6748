"""The Lambda of several routes that share a warm cache: ``SPASS_ROUTES`` names their modules, with commas between."""

import os
from importlib import import_module

from fastapi import APIRouter

from spass.web.functions import lambda_handler

router = APIRouter()
for _name in os.environ["SPASS_ROUTES"].split(","):
    router.routes.extend(import_module(_name).router.routes)

handler = lambda_handler(router)
