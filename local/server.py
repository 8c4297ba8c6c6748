"""All routes in one app, as the laptop serves them."""

import importlib

from fastapi import APIRouter
from starlette.types import ASGIApp

from infra.routes import ROUTES
from local.edge import LambdaEdge
from spass.web.app import create_app
from spass.web.services import Services


def routers() -> list[APIRouter]:
    """The router of every route file that ROUTES names."""
    modules = dict.fromkeys(route.module for route in ROUTES)
    return [importlib.import_module(f"functions.{module}").router for module in modules]


def local_app() -> ASGIApp:
    """The gateway with every route, behind what AWS would put before it.

    Raises:
        ConfigError: a file of the operator's has mistakes; they are found here and not by the first request.
    """
    services = Services()
    _ = services.tokens, services.agents, services.router
    return LambdaEdge(create_app(routers(), services))
