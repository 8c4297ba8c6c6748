"""The worker of the queue of jobs: uploaded files and their parts, merges, and audit records."""

from collections.abc import Mapping
from typing import Any

from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.jobs.background import background_handler
from spass.jobs.dispatch import Dispatcher
from spass.web.services import Services
from spass.web.startup import worker_handler


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Handle a batch of messages."""
    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}
    handler = background_handler(services.writer, services.object_cache, bus=services.bus)
    return await Dispatcher(tenants, services.aws.for_tenant, handler, services.tracer).batch(event, deadline)


handler = worker_handler(work, warm_up=lambda services: (services.writer, services.read_keys()))
