"""The hourly sweep: delete garbage and send lost jobs again, for every tenant. Once a day it also runs a line of code."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.core.time import Deadline, now, now_s
from spass.rag.ingest.sweep import sweep_uploads
from spass.rag.write.sweep import sweep
from spass.redaction.log import failure_line, write_line
from spass.sessions.compaction.job import repair_places as repair_compactions
from spass.sessions.sweep import sweep_bodies
from spass.web.services import Services
from spass.web.startup import worker_handler
from spass.workspaces.sweep import sweep_workspaces

_HOUR_OF_CODE: Final = 3  # UTC


async def work(services: Services, _: Mapping[str, Any], deadline: Deadline) -> Json:
    """Sweep one tenant after the other until the deadline, in random order, so that no tenant is always last."""
    sandbox = await _run_code(services) if now_s() // 3600 % 24 == _HOUR_OF_CODE else {}
    tenants = [TenantId(tenant.id) for tenant in services.config.tenants]
    random.shuffle(tenants)
    counts: Counter[str] = Counter(await _sweep_schedules(services, tenants, deadline))
    for tenant in tenants:
        if not deadline.remaining():
            break
        try:
            counts.update(await _sweep_tenant(services, tenant, deadline))
        except Exception as error:  # noqa: BLE001 (one tenant's failure must not stop the others)
            write_line({**failure_line(error, ""), "event": "sweep_failed", "tenant": tenant})
            counts["failed"] += 1
    line: dict[str, Json] = {"at": now(), "level": "info", "event": "swept", "tenants": len(tenants), **counts, **sandbox}
    write_line(line)
    return line


async def _sweep_schedules(services: Services, tenants: list[TenantId], deadline: Deadline) -> dict[str, int]:
    """Sweep the schedules of all tenants, in at most half of the time."""
    from spass.managed.schedules import ScheduleSweep

    sweep = ScheduleSweep(services.aws.schedules, services.schedules, tenants, services.aws.for_tenant)
    try:
        swept = await sweep.run(Deadline.after(deadline.remaining() / 2))
    except Exception as error:  # noqa: BLE001 (the sweep continues)
        write_line({**failure_line(error, ""), "event": "schedule_sweep_failed"})
        return {"schedules_failed": 1}
    return {"schedules": swept.corrected, "schedule_orphans": swept.orphans, "schedules_failed": swept.failed}


async def _run_code(services: Services) -> dict[str, Json]:
    """Keep the sandbox of a deployment active. Return what the line of the sweep says about it."""
    from spass.sandbox.keep_function_active import keep_function_active

    try:
        return {"sandbox": "ok"} if await keep_function_active(services.sandbox) else {}
    except Exception as error:  # noqa: BLE001 (the sweep continues)
        write_line({**failure_line(error, ""), "event": "sandbox_failed"})
        return {"sandbox": "failed"}


async def _sweep_tenant(services: Services, tenant: TenantId, deadline: Deadline) -> dict[str, int]:
    store, at = services.aws.for_tenant(tenant), now_s()
    indices = await sweep(store, at, deadline)
    uploads = await sweep_uploads(store, at, deadline)
    workspaces = await sweep_workspaces(store, at, deadline)
    managed = await services.managed_agents.sweep(store, deadline)
    await repair_compactions(store, at)
    return {
        "swept": 1,
        "retired": indices.garbage,
        "orphans": indices.orphans,
        "merges": indices.merges,
        "bodies": await sweep_bodies(store, at, deadline),
        "uploads": uploads.abandoned,
        "uploads_resent": uploads.resent,
        "workspaces": workspaces.generations,
        "workspace_orphans": workspaces.orphans,
        "runs_resent": managed.resent,
        "runs_lost": managed.lost,
        "agents_deleted": managed.deleted,
        "managed_texts": managed.texts,
        "managed_failed": managed.failed,
    }


handler = worker_handler(work)
