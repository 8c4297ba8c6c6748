"""Writes that lose a race are repeated without a pause."""

import pytest


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.store.swap._MAX_BACKOFF_SECONDS", 0)
