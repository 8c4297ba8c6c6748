"""The whole gateway in process: its routes over stores in memory and a scripted model."""

from collections.abc import Sequence
from functools import cached_property

import httpx
from fastapi import APIRouter

from spass.aws.clients import Aws
from spass.models.router import Router
from spass.testing.model import ScriptedModel
from spass.web.app import create_app
from spass.web.services import Services, Settings


class ScriptedServices(Services):
    """The services of a process whose every model is ``model``."""

    def __init__(self, settings: Settings, model: ScriptedModel, aws: Aws) -> None:
        super().__init__(settings)
        self.aws = aws
        self._model = model

    @cached_property
    def router(self) -> Router:
        return Router(self.config.llm, self.config.models, lambda _: "a key", provider_of=lambda *_: self._model)


def gateway_client(routers: Sequence[APIRouter], services: Services, token: str) -> httpx.AsyncClient:
    """Return a client of an app with these routes, which sends ``token`` with each request and opens no socket."""
    transport = httpx.ASGITransport(create_app(routers, services))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers={"Authorization": f"Bearer {token}"})
