"""Replace what differs between two runs of the same code: clocks, random numbers, threads and processes.

None of this confines the code. A program that goes around it, for example through ``ctypes``, gets an error in a replay.
"""

from __future__ import annotations

import _random
import _thread
import posix
import sys
import time
from _blake2 import blake2b

_SECOND = 10**9
_TICK = 1000
"""Nanoseconds that pass with each reading. So a loop that waits for a time ends, and no duration is zero."""
_MAX_SLEEP = 2**63 / _SECOND


class Clock:
    """The time of a turn in nanoseconds."""

    def __init__(self, started: float) -> None:
        """``started``: seconds since 1970."""
        self._started = self._now = int(started * _SECOND)
        self._readings = 0

    def advance_to(self, time: float) -> None:
        """Set the clock to ``time``, in seconds since 1970, unless it is later already."""
        self._now = max(self._now, int(time * _SECOND))

    def sleep(self, seconds: float, /) -> None:
        """Let the time pass without waiting."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if seconds > _MAX_SLEEP:
            raise OverflowError("timestamp too large to convert to C PyTime_t")
        self._now += int(seconds * _SECOND)

    def now(self) -> int:
        """Return the nanoseconds since 1970."""
        self._now += _TICK
        self._readings += 1
        return self._now

    def elapsed(self) -> int:
        """Return the nanoseconds since the turn began."""
        return self.now() - self._started

    def busy(self) -> int:
        """Return the processor time that a program sees, in nanoseconds."""
        self.now()
        return self._readings * _TICK


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from _typeshed import ReadableBuffer as Data

    from spass.sandbox.child.output import Output
    from spass.sandbox.child.repeatability import Clock

_PROCESS_STARTS = ("fork", "fork1", "forkpty", "system", "posix_spawn", "posix_spawnp", "execv", "execve")
_THREAD_STARTS = ("start_new_thread", "start_new", "start_joinable_thread")
_OUTPUT_DESCRIPTORS = (1, 2)
_SECOND = 10**9


def make_repeatable(clock: Clock, output: Output, seed: str) -> None:
    """Call this before ``os``, ``random`` or ``threading`` is imported: they copy what this function replaces."""
    posix.environ.clear()
    posix.putenv("TZ", "UTC")
    time.tzset()
    _replace_clocks(clock)
    _replace_random_numbers(seed)
    _refuse_threads_and_processes()
    _capture_written_bytes(output)


def _replace_clocks(clock: Clock) -> None:
    def clock_gettime_ns(number: int, /) -> int:
        if number in (time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_THREAD_CPUTIME_ID):
            return clock.busy()
        return clock.now() if number == time.CLOCK_REALTIME else clock.elapsed()

    in_nanoseconds: dict[str, Callable[..., int]] = {
        "time": clock.now,
        "monotonic": clock.elapsed,
        "perf_counter": clock.elapsed,
        "process_time": clock.busy,
        "thread_time": clock.busy,
        "clock_gettime": clock_gettime_ns,
    }
    for name, read in in_nanoseconds.items():
        setattr(time, f"{name}_ns", read)
        setattr(time, name, _in_seconds(read))
    vars(time)["sleep"] = clock.sleep
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _with_default_time(getattr(time, name), clock))
    _replace_formats()
    for name in ("_datetime", "_zoneinfo"):  # without them, datetime's own Python code reads the module time
        sys.modules[name] = None  # type: ignore[assignment]


def _in_seconds(read: Callable[..., int]) -> Callable[..., float]:
    return lambda *number: read(*number) / _SECOND


def _with_default_time(convert: Callable[[float], object], clock: Clock) -> Callable[..., object]:
    return lambda seconds=None: convert(clock.now() / _SECOND if seconds is None else seconds)


def _replace_formats() -> None:
    asctime, strftime = time.asctime, time.strftime
    vars(time)["asctime"] = lambda moment=None, /: asctime(time.localtime() if moment is None else moment)
    vars(time)["strftime"] = lambda pattern, moment=None, /: strftime(pattern, time.localtime() if moment is None else moment)


def _replace_random_numbers(seed: str) -> None:
    generator = _random.Random(int.from_bytes(blake2b(seed.encode()).digest(), "big"))

    def urandom(size: int, /) -> bytes:
        if size < 0:
            raise ValueError("negative argument not allowed")
        return generator.getrandbits(8 * size).to_bytes(size, "big")

    class Random(_random.Random):
        """The base of ``random.Random``."""

        def seed(self, value: object = None, /) -> None:
            super().seed(generator.getrandbits(256) if value is None else value)

    _replace("urandom", urandom)
    _replace("getrandom", lambda size, flags=0: urandom(size))  # noqa: ARG005
    _replace_module("_random", Random=Random)
    sys.modules["_uuid"] = None  # type: ignore[assignment]  # uuid then uses the module time


def _refuse_threads_and_processes() -> None:
    def start_thread(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("Threads cannot be started here. To ask a model several questions side by side, call llm_batch.")

    def start_process(*_: object, **__: object) -> NoReturn:
        raise PermissionError(1, "Processes cannot be started here")

    for name in _THREAD_STARTS:
        if hasattr(_thread, name):
            setattr(_thread, name, start_thread)
    for name in _PROCESS_STARTS:
        _replace(name, start_process)
    _replace_module("_posixsubprocess", fork_exec=start_process)


def _capture_written_bytes(output: Output) -> None:
    """Count ``os.write(1, …)`` as output. Descriptors 1 and 2 themselves lead nowhere."""
    real_write = posix.write

    def write(descriptor: int, data: Data, /) -> int:
        return output.add_bytes(data) if descriptor in _OUTPUT_DESCRIPTORS else real_write(descriptor, data)

    _replace("write", write)


def _replace(name: str, function: Callable[..., object]) -> None:
    """Replace a function of ``os`` if the system has it."""
    if hasattr(posix, name):
        setattr(posix, name, function)


def _replace_module(name: str, **attributes: object) -> None:
    module = type(sys)(name)
    vars(module).update(attributes)
    sys.modules[name] = module
