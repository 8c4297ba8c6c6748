"""The queue of compactions: each message starts the state machine on one job."""

from collections.abc import Mapping
from typing import Any

from spass.aws.log import write_line
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.sessions.compaction.asked import Dropped, asked_of
from spass.web.batches import Message, carried_out
from spass.web.functions import worker_handler
from spass.web.services import Services


async def work(services: Services, event: Mapping[str, Any], _: Deadline) -> Json:
    """Carry out a batch of messages. One that asks for nothing we can do leaves a line in the log, which holds nothing of it, and
    is done with."""
    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}

    async def carry_out(message: Message) -> bool:
        asked = asked_of(message.body, tenants)
        if isinstance(asked, Dropped):
            write_line({"at": now(), "level": "warning", "event": "job_dropped", "message_id": message.id, "why": asked.why})
        else:
            await services.aws.for_tenant(asked.tenant).jobs.start_compaction(asked.job)
        return True

    return await carried_out(event, carry_out)


handler = worker_handler(work, needs=lambda services: services.config)
