"""The gateway with all its routes, for a bench to serve."""

from importlib import import_module

from infra.routes import ROUTES
from spass.web.app import create_app

app = create_app([import_module(f"functions.{route.module}").router for route in ROUTES])
