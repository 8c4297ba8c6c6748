"""Test that one call reads all provider keys during the start of a function, and that many functions can start despite SSM's
quota."""

import json
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from spass.core.errors import InternalError, StorageUnavailable
from spass.models.provider_keys import ProviderKeys, RetryTiming
from tests.unit.models.virtual_threads import VirtualThreads

PATH = "/spass/test/"
NAMES = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY")


@pytest.fixture(autouse=True)
def _remove_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


class ParameterStore:
    """A parameter store. The next ``failures`` calls raise ``failure``."""

    def __init__(self, **values: str) -> None:
        self.values = {PATH + name: value for name, value in values.items()}
        self.calls: list[Sequence[str]] = []
        self.now = 1_000_000.0
        self.delays: list[float] = []
        self.failure: Exception = StorageUnavailable("throttled")
        self.failures = 0

    def read(self, names: Sequence[str]) -> Mapping[str, str]:
        self.calls.append(names)
        if self.failures:
            self.failures -= 1
            raise self.failure
        return {name: self.values[name] for name in names if name in self.values}

    def keys(self, names: Sequence[str] = NAMES, path: str | None = PATH) -> ProviderKeys:
        return ProviderKeys(names, path, self.read, timing=RetryTiming(lambda: self.now, self.sleep, lambda: 0.5))

    def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.now += seconds


def log_lines(capsys: pytest.CaptureFixture[str]) -> list[Mapping[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


class ThrottledStore:
    """A parameter store that allows 40 calls a second, the default quota of an account."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._available_calls, self._updated_at = 40.0, 0.0

    def read(self, names: Sequence[str]) -> Mapping[str, str]:
        now = self._clock()
        self._available_calls = min(40.0, self._available_calls + 40.0 * (now - self._updated_at))
        self._updated_at = now
        if self._available_calls < 1:
            raise StorageUnavailable("throttled")
        self._available_calls -= 1
        return dict.fromkeys(names, "a-key")


@pytest.mark.parametrize("seed", range(5))
def test_400_functions_that_start_within_a_second_all_get_their_keys(seed: int) -> None:
    threads = VirtualThreads()
    throttled_store = ThrottledStore(threads.clock)
    jitter = random.Random(seed)
    ready_at: list[float] = []

    def start() -> None:
        keys = ProviderKeys(NAMES, PATH, throttled_store.read, timing=RetryTiming(threads.clock, threads.sleep, jitter.random))
        keys.prefetch(NAMES)
        assert [keys.get(name) for name in NAMES] == ["a-key"] * 3
        ready_at.append(threads.now)

    threads.run([(number / 400, start) for number in range(400)])
    assert len(ready_at) == 400
    assert max(ready_at) < 20, "seconds until the last function had its keys"


def test_one_call_reads_all_keys() -> None:
    store = ParameterStore(ANTHROPIC_API_KEY="a", OPENAI_API_KEY="")
    keys = store.keys()
    keys.prefetch(["ANTHROPIC_API_KEY"])
    assert [keys.get(name) for name in NAMES] == ["a", None, None]
    assert store.calls == [[PATH + name for name in NAMES]]


def test_more_than_ten_keys_are_read_in_several_calls() -> None:
    names = [f"KEY_{number:02}" for number in range(23)]
    store = ParameterStore(**dict.fromkeys(names, "a"))
    keys = store.keys(names)
    assert keys.get("KEY_22") == "a"
    assert [len(call) for call in store.calls] == [10, 10, 3]


def test_keys_in_the_environment_are_not_read_from_ssm(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ParameterStore(ANTHROPIC_API_KEY="stored", OPENAI_API_KEY="stored")
    keys = store.keys()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "set")
    keys.prefetch(["ANTHROPIC_API_KEY"])
    assert (keys.get("ANTHROPIC_API_KEY"), store.calls) == ("set", [])
    assert keys.get("OPENAI_API_KEY") == "stored"
    assert store.calls == [[PATH + "OPENAI_API_KEY", PATH + "XAI_API_KEY"]]


def test_a_prefetch_without_names_or_without_a_path_reads_nothing() -> None:
    store = ParameterStore()
    store.keys().prefetch([])
    without_path = store.keys(path=None)
    without_path.prefetch(NAMES)
    assert (without_path.get("OPENAI_API_KEY"), store.calls) == (None, [])


def test_a_new_key_is_used_within_five_minutes() -> None:
    store = ParameterStore()
    keys = store.keys()
    assert keys.get("XAI_API_KEY") is None
    store.values[PATH + "XAI_API_KEY"] = "new"
    store.now += 299
    assert keys.get("XAI_API_KEY") is None
    store.now += 1
    assert keys.get("XAI_API_KEY") == "new"
    assert len(store.calls) == 2


@pytest.mark.parametrize("failure", [StorageUnavailable("throttled"), InternalError("refused")])
def test_stale_keys_are_used_immediately_if_ssm_fails(failure: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    store = ParameterStore(OPENAI_API_KEY="old")
    keys = store.keys()
    keys.prefetch(NAMES)
    store.values[PATH + "OPENAI_API_KEY"] = "new"
    store.now += 300
    store.failure, store.failures = failure, 1
    assert [keys.get("OPENAI_API_KEY") for _ in range(3)] == ["old"] * 3
    assert (len(store.calls), store.delays) == (2, [])
    assert [line["event"] for line in log_lines(capsys)] == ["provider_keys_read_failed"]
    store.now += 10
    assert keys.get("OPENAI_API_KEY") == "new"


@pytest.mark.parametrize("failure", [StorageUnavailable("throttled"), InternalError("refused")])
def test_a_prefetch_gives_up_within_four_seconds(failure: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    store = ParameterStore(OPENAI_API_KEY="a")
    store.failure, store.failures = failure, 1_000
    keys = store.keys()
    keys.prefetch(NAMES)
    assert sum(store.delays) <= 4
    assert [line["event"] for line in log_lines(capsys)] == ["provider_keys_read_failed"]
    # The first get after a failed prefetch reads again. It retries if SSM throttles, but not if SSM refuses.
    store.failures = 3
    if isinstance(failure, StorageUnavailable):
        assert keys.get("OPENAI_API_KEY") == "a"
    else:
        with pytest.raises(InternalError):
            keys.get("OPENAI_API_KEY")


def test_a_request_gives_up_after_thirty_seconds() -> None:
    store = ParameterStore(OPENAI_API_KEY="a")
    store.failures = 1_000
    with pytest.raises(StorageUnavailable):
        store.keys().get("OPENAI_API_KEY")
    assert 20 < sum(store.delays) <= 30
