"""The queue of jobs: files that were put into the bucket, uploads to go on with, segments to merge."""

from collections.abc import Mapping
from typing import Any

from spass.aws.clients import TenantStore
from spass.core.ids import IndexId, TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.rag.ingest.dispatch import Dispatch
from spass.rag.ingest.worker import Delivery, Ingest
from spass.web.batches import Message, carried_out
from spass.web.functions import worker_handler
from spass.web.services import Services


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Carry out a batch of messages."""
    dispatch = dispatch_of(services)

    async def carry_out(message: Message) -> bool:
        return await dispatch.message(message.body, Delivery(message.id, message.deliveries), deadline)

    return await carried_out(event, carry_out)


def dispatch_of(services: Services) -> Dispatch:
    """Who carries out messages, made of the process's services."""

    async def merge(store: TenantStore, index: IndexId, deadline: Deadline) -> None:
        from spass.rag.merger import merge

        await merge(store, services.object_cache, index, deadline)

    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}
    return Dispatch(tenants, services.aws.for_tenant, Ingest(services.rag), merge)


handler = worker_handler(work, needs=lambda services: (services.rag, services.read_keys()))
