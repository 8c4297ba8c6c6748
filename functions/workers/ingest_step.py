"""One step of the state machine that ingests the parts of a large file."""

from collections.abc import Mapping
from typing import Any

from spass.core.ids import IndexId, TenantId, UploadId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.rag.ingest.steps import Steps
from spass.web.functions import worker_handler
from spass.web.services import Services


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """``part`` works on one part and answers whether it is ``done``; ``finish`` and ``fail`` end the upload."""
    store = services.aws.for_tenant(TenantId(event["tenant"]))
    steps = Steps(services.rag, store, IndexId(event["index"]), UploadId(event["upload"]), int(event["execution"]))
    match event["step"]:
        case "part":
            return {"done": await steps.part(int(event["part"]), deadline)}
        case "finish":
            await steps.finish()
        case "fail":
            await steps.fail()
        case _:
            raise ValueError("no step of this machine")
    return {"done": True}


handler = worker_handler(work, needs=lambda services: (services.rag, services.read_keys()))
