"""The queue of jobs: files that were put into the bucket, uploads to go on with, segments to merge."""

from collections.abc import Mapping
from typing import Any

from spass.aws.clients import TenantStore
from spass.aws.log import failure_line, write_line
from spass.core.ids import IndexId, TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.rag.ingest.dispatch import Dispatch
from spass.rag.ingest.worker import Delivery, Ingest
from spass.web.functions import worker_handler
from spass.web.services import Services


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Carry out a batch of messages; those that shall come again are named in the answer.
    (https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html)
    """
    dispatch = dispatch_of(services)
    failed: list[Json] = []
    for record in event["Records"]:
        delivery = Delivery(record["messageId"], int(record["attributes"]["ApproximateReceiveCount"]))
        try:
            done = await dispatch.message(record["body"], delivery, deadline)
        except Exception as error:  # noqa: BLE001 (one message's failure is not the next one's)
            write_line({**failure_line(error, ""), "event": "job_failed", "message_id": delivery.message})
            done = False
        if not done:
            failed.append({"itemIdentifier": delivery.message})
    return {"batchItemFailures": failed}


def dispatch_of(services: Services) -> Dispatch:
    """Who carries out messages, made of the process's services."""

    async def merge(store: TenantStore, index: IndexId, deadline: Deadline) -> None:
        from spass.rag.merger import merge

        await merge(store, services.object_cache, index, deadline)

    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}
    return Dispatch(tenants, services.aws.for_tenant, Ingest(services.rag), merge)


handler = worker_handler(work, needs=lambda services: services.rag)
