"""Which traces are sent, and how many spans they have."""

import random

import pytest

from spass.core.bus_events import InferenceStart
from spass.core.ids import RequestId
from spass.observability.conventions import CLIENT, SERVER
from spass.observability.trace import MAX_SPANS, Span, Trace
from tests.unit.bus_events import COMMON, inference_end, turn_end

SPAN = "b7ad6b7169203331"


def trace(sample: float, trace_id: str | None = None) -> Trace:
    made = Trace(Span("GET", SERVER), sample)
    if trace_id is not None:
        made.join(f"00-{trace_id}-{SPAN}-00")
    return made


@pytest.mark.parametrize(
    ("last", "sample", "is_sampled"),
    [
        ("0" * 13 + "1", 1.0, True),
        ("f" * 14, 0.0, False),
        ("f" * 14, 0.001, True),
        ("80000000000000", 0.5, True),
        ("7fffffffffffff", 0.5, False),
    ],
)
def test_the_id_decides_whether_a_trace_is_sampled(last: str, sample: float, is_sampled: bool) -> None:
    assert trace(sample, f"{'a' * 18}{last}").is_sampled is is_sampled


def test_a_part_of_all_ids_is_sampled() -> None:
    numbers = random.Random(7)
    found = sum(trace(0.2, f"{numbers.getrandbits(128) | 1 << 127:032x}").is_sampled for _ in range(2000))
    assert 320 < found < 480


def test_a_message_carries_the_id_the_root_and_the_decision() -> None:
    made = trace(1.0)
    assert made.traceparent == f"00-{made.id}-{made.root.id}-01"
    assert trace(0.0, "a" * 32).traceparent.endswith("-00")


def test_a_trace_that_was_used_is_linked_and_not_renamed() -> None:
    made = trace(1.0)
    own = made.id
    made.join(f"00-{'a' * 32}-{SPAN}-01")
    assert (made.id, made.root.parent_id) == (own, None)
    assert made.link is not None


@pytest.mark.parametrize(("duration_ms", "is_kept"), [(30_000, False), (30_001, True)])
def test_a_slow_turn_is_kept(duration_ms: int, is_kept: bool) -> None:
    made = trace(0.0)
    made.end(turn_end(duration_ms=duration_ms))
    assert made.is_kept is is_kept


def test_spans_beyond_512_are_counted_and_their_ends_have_no_effect() -> None:
    made = trace(1.0)
    for number in range(600):
        start = InferenceStart(**COMMON, call_id=RequestId(f"req_{number}"), model="small")
        made.begin(start, Span("chat small", CLIENT))
    assert (len(made.spans), made.dropped) == (MAX_SPANS, 600 - MAX_SPANS + 1)
    assert made.end(inference_end("req_510")) is made.spans[-1]
    assert made.end(inference_end("req_599")) is None
