"""A tenant's data in sessions that an emulated STS gives."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from spass.aws.clients import Aws
from spass.core.ids import IndexId, TenantId
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.writes import Put
from tests.integration.conftest import REGION, Emulator

pytestmark = pytest.mark.anyio
ROLE = "arn:aws:iam::000000000000:role/twin"


@pytest.fixture
async def deployed(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Aws]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    aws = Aws(table=emulator.table, bucket=emulator.bucket, tenant_role=ROLE)
    aws.connect()
    yield aws
    aws.close()
    await asyncio.sleep(0)


async def test_items_and_objects_are_written_and_read_in_a_session(deployed: Aws, tenant: TenantId) -> None:
    store = deployed.for_tenant(tenant)
    key = keys.rag_manifest(tenant, IndexId("i"))
    await store.table.write(Put(key, {"a": 1}))
    await store.objects.put("x", b"bytes")
    assert await store.table.get(key) == {"pk": key.pk, "sk": key.sk, "a": 1}
    assert await store.objects.get("x") == b"bytes"
    with pytest.raises(ObjectMissing):
        await store.objects.get("y")
