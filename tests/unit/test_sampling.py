"""Tests of the sampling of long enumerations."""

import pytest

from tests import sampling
from tests.sampling import sampled


@pytest.fixture
def at_offset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sampling, "SOAK", False)
    return monkeypatch


@pytest.mark.parametrize("every", [1, 3, 7, 20])
def test_as_many_commits_as_the_step_try_every_point_once(at_offset: pytest.MonkeyPatch, every: int) -> None:
    points = range(20)
    tried: list[int] = []
    for commit in range(1000, 1000 + every):
        at_offset.setattr(sampling, "offset", lambda commit=commit: commit)
        tried.extend(sampled(points, every))
    assert sorted(tried) == list(points)


def test_a_list_shorter_than_the_step_is_still_tried(at_offset: pytest.MonkeyPatch) -> None:
    for commit in range(10):
        at_offset.setattr(sampling, "offset", lambda commit=commit: commit)
        assert len(sampled(["a", "b"], 7)) == 1
    assert sampled([], 7) == []


def test_a_soak_tries_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SOAK", True)
    assert sampled(range(20), 7) == range(20)
