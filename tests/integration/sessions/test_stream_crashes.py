"""A sample of the crashes in streamed turns (``tests/functions/test_crashes.py``) on the emulated DynamoDB."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import boto3
import pytest

from spass.aws.clients import Aws
from spass.aws.dynamodb import item_of
from spass.store.writes import Item
from spass.testing.faults import Fault
from tests.functions.chat_turns import ChatTurn
from tests.functions.test_crashes import Attempt, check_end, count_calls, repeat
from tests.integration.conftest import REGION
from tests.simulated.chats import TENANT, Chats, Process, virtual_clocks
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

TRIES: Final = 5
"""Turns until one makes as many calls as the one that was counted."""


class EmulatedChats(Chats):
    """Chats on the emulator. Virtual time goes on while it answers, so a slow answer lets a turn write its stream once more."""

    def __init__(self, folder: Path, emulated: Aws) -> None:
        self._emulated = emulated
        session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
        self._client = session.client("dynamodb", endpoint_url=emulated._s3.meta.endpoint_url)
        super().__init__(folder)

    def _empty_stores(self) -> Aws:
        for item in self.items():
            self._client.delete_item(
                TableName=self._emulated._table, Key={"pk": {"S": str(item["pk"])}, "sk": {"S": str(item["sk"])}}
            )
        return self._emulated

    def items(self) -> list[Item]:
        pages = self._client.get_paginator("scan").paginate(TableName=self._emulated._table)
        items = [item_of(item) for page in pages for item in page["Items"]]
        return [item for item in items if str(item["pk"]).startswith(f"T#{TENANT}#")]


@pytest.fixture
async def chats(tmp_path: Path, emulated_aws: Aws, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Chats]:
    monkeypatch.setattr("spass.runs.run._STOP_POLL_SECONDS", 15.0)
    with virtual_clocks():
        yield EmulatedChats(tmp_path, emulated_aws)


async def test_a_turn_on_dynamodb_is_recorded_once_if_any_write_fails(chats: Chats) -> None:
    calls = (await count_calls(chats, "new session")).calls
    writes = [point for point, call in enumerate(calls) if call.operation not in ("GetItem", "Query")]
    assert len(writes) >= 6
    for fault, point, times in [*((Fault.CRASH_AFTER, point, 1) for point in writes), (Fault.LOST_REPLY, writes[-1], 2)]:
        for _ in range(TRIES):
            process = Process(fault, at=point, times=times)
            turn = await ChatTurn.prepare(chats, "new session")
            attempt = Attempt(turn, process)
            await attempt.run()
            await attempt.check()
            await check_end(turn, await repeat(turn))
            if len(process.calls) > point:
                break
        else:
            pytest.fail(f"no turn has made call {point}")
