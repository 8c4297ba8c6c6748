"""The queue of compactions: each message starts the state machine on one job."""

from collections.abc import Mapping
from typing import Any

from spass.aws.log import failure_line, write_line
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.sessions.compaction.asked import Dropped, asked_of
from spass.web.functions import worker_handler
from spass.web.services import Services


async def work(services: Services, event: Mapping[str, Any], _: Deadline) -> Json:
    """Carry out a batch of messages; those that shall come again are named in the answer. One that asks for nothing we can do
    leaves a line in the log, which holds nothing of it, and is done with.
    (https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html)
    """
    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}
    failed: list[Json] = []
    for record in event["Records"]:
        message = record["messageId"]
        asked = asked_of(record["body"], tenants)
        if isinstance(asked, Dropped):
            write_line({"at": now(), "level": "warning", "event": "job_dropped", "message_id": message, "why": asked.why})
            continue
        try:
            await services.aws.for_tenant(asked.tenant).jobs.start_compaction(asked.job)
        except Exception as error:  # noqa: BLE001 (one message's failure is not the next one's)
            write_line({**failure_line(error, ""), "event": "job_failed", "message_id": message})
            failed.append({"itemIdentifier": message})
    return {"batchItemFailures": failed}


handler = worker_handler(work, needs=lambda services: services.config)
