"""A gateway on an emulated table and bucket, new for each test."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from tests.functions.gateway import Gateway, create_storage


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with mock_aws():
        create_storage()
        yield Gateway(tmp_path, loop)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()
