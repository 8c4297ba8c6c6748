"""Records survive the way through the attributes of an item. A broken item is one error, whose text only the log has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final

import pytest

from spass.core.codec import AsJson, Required, StoredAs
from spass.core.errors import InternalError
from spass.core.ids import SessionId
from spass.core.messages import Json
from spass.redaction.log import failure_line
from spass.store.codec import decode, encode


class Kind(StrEnum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True, slots=True)
class Inner:
    number: int
    cost: Decimal = Decimal("0.5")


@dataclass(frozen=True, slots=True)
class Record:
    id: SessionId
    kind: Kind
    title: str | None
    inner: Inner
    others: tuple[Inner, ...]
    error: Annotated[Mapping[str, Json] | None, AsJson()]
    state: Annotated[Json, AsJson()]
    parts: Annotated[tuple[Inner, ...], AsJson(), StoredAs("retired")] = ()
    body: bytes = b""
    tags: tuple[str, ...] = ()
    details: Mapping[str, Json] = field(default_factory=dict)
    hold: Inner | None = None
    done: bool = False


RECORD: Final = Record(
    SessionId("ses_1"),
    Kind.TWO,
    "t",
    Inner(1),
    (Inner(2),),
    {"a": 0.5},
    0.5,
    (Inner(3),),
    b"x",
    ("a",),
    {"b": 1},
)
STORED: Final[dict[str, Any]] = {
    "id": "ses_1",
    "kind": "two",
    "title": "t",
    "inner": {"number": 1, "cost": "0.5"},
    "others": [{"number": 2, "cost": "0.5"}],
    "error": '{"a":0.5}',
    "state": "0.5",
    "retired": '[{"number":3,"cost":"0.5"}]',
    "body": b"x",
    "tags": ("a",),
    "details": {"b": 1},
    "done": False,
}
KEY: Final = {"pk": "T#acme#SES#ses_1", "sk": "HEAD"}


def test_a_record_is_stored_without_what_is_none() -> None:
    assert encode(RECORD) == STORED


def test_a_record_is_read_as_it_was_stored() -> None:
    assert decode(Record, {**KEY, **STORED}) == RECORD


def test_a_field_that_a_later_release_stored_is_ignored() -> None:
    later = {**STORED, "later": 1, "inner": {**STORED["inner"], "later": 2}}
    assert decode(Record, later) == RECORD


def test_absent_attributes_are_defaults_or_none() -> None:
    required = {name: STORED[name] for name in ("id", "kind", "inner", "others")}
    assert decode(Record, required) == Record(SessionId("ses_1"), Kind.TWO, None, Inner(1), (Inner(2),), None, None)


@dataclass(frozen=True, slots=True)
class Version:
    number: Annotated[int, Required()] = 0


def test_a_default_of_code_does_not_replace_a_required_attribute() -> None:
    assert encode(Version()) == {"number": 0}
    with pytest.raises(InternalError):
        decode(Version, {})


def test_fields_of_the_key_are_given() -> None:
    assert decode(Inner, {"number": "from the key"}, number=7) == Inner(7)


BROKEN: Final[Mapping[str, Mapping[str, Any]]] = {
    "Record T#acme#SES#ses_1 HEAD.id has a wrong value.": {"id": 1},
    "Record T#acme#SES#ses_1 HEAD.kind has a wrong value.": {"kind": "three"},
    "Record T#acme#SES#ses_1 HEAD.inner has a wrong value.": {"inner": None},
    "Record T#acme#SES#ses_1 HEAD.inner.number has a wrong value.": {"inner": {"number": True}},
    "Record T#acme#SES#ses_1 HEAD.inner.number is missing.": {"inner": {}},
    "Record T#acme#SES#ses_1 HEAD.inner.cost has a wrong value.": {"inner": {"number": 1, "cost": "much"}},
    "Record T#acme#SES#ses_1 HEAD.others[1].number is missing.": {"others": [{"number": 1}, {}]},
    "Record T#acme#SES#ses_1 HEAD.error has a wrong value.": {"error": "{"},
    "Record T#acme#SES#ses_1 HEAD.retired[0].number is missing.": {"retired": "[{}]"},
    "Record T#acme#SES#ses_1 HEAD.hold has a wrong value.": {"hold": "x"},
    "Record T#acme#SES#ses_1 HEAD.done has a wrong value.": {"done": 1},
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_item_is_an_internal_error_that_only_the_log_explains(why: str) -> None:
    with pytest.raises(InternalError) as raised:
        decode(Record, {**KEY, **STORED, **BROKEN[why]})
    assert raised.value.message == "Something went wrong on our side."
    assert failure_line(raised.value, "req_1")["why"] == f"The stored {why}"


def test_a_required_attribute_that_is_missing_is_named() -> None:
    with pytest.raises(InternalError) as raised:
        decode(Record, {**KEY, **{name: value for name, value in STORED.items() if name != "kind"}})
    assert failure_line(raised.value, "req_1")["why"] == "The stored Record T#acme#SES#ses_1 HEAD.kind is missing."
