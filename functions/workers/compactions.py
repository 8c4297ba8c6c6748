"""The worker of the queue of compactions: each message starts the state machine on one job."""

from collections.abc import Mapping
from typing import Any

from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.jobs.compactions import start_compaction
from spass.jobs.dispatch import Dispatcher
from spass.web.services import Services
from spass.web.startup import worker_handler


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Handle a batch of messages."""
    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}
    return await Dispatcher(tenants, services.aws.for_tenant, start_compaction, services.tracer).batch(event, deadline)


handler = worker_handler(work, warm_up=lambda services: services.config)
