"""The worker of the queue of runs: one run of a managed agent per invocation."""

from collections.abc import Mapping
from typing import Any

from spass.core.errors import GATEWAY_STOPPED, InternalError, SpassError, StorageUnavailable
from spass.core.ids import RequestId, TenantId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.jobs.dispatch import Dispatcher
from spass.jobs.runs import runs_handler
from spass.redaction.log import failure_line, write_line
from spass.web.errors import envelope
from spass.web.services import Services
from spass.web.startup import worker_handler


async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
    """Handle a batch of messages."""

    def report(error: SpassError) -> Mapping[str, Json]:
        if isinstance(error, InternalError | StorageUnavailable) and error is not GATEWAY_STOPPED:
            write_line({**failure_line(error, ""), "event": "run_failed"})
        return envelope(error, RequestId(""), services.redact).error.to_dict()

    tenants = {TenantId(tenant.id) for tenant in services.config.tenants}
    handler = runs_handler(services.run_worker, report)
    return await Dispatcher(tenants, services.aws.for_tenant, handler, services.tracer).batch(event, deadline)


handler = worker_handler(
    work,
    warm_up=lambda services: (services.run_worker, services.agents, services.read_keys(all_models=True)),
)
