"""A query warns of a filter that cannot mean what it says: it names an unknown field, or compares a number with text."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from spass.testing.faults import FaultPlan, inject
from tests.functions.gateway import Gateway

INDEX = "/a1/rag/indices/parks"
DOCUMENTS = [
    {"id": "a", "text": "A park.", "metadata": {"year": "1742", "city": "Berlin", "rating": 4}},
    {"id": "b", "text": "A garden.", "metadata": {"year": "1679", "city": "Hannover", "rating": "4", "closed": None}},
]


def query(gateway: Gateway, **body: object) -> Any:
    reply = gateway.send("POST", f"{INDEX}/query", body={"query": "park", **body})
    assert reply.status == 200, reply.text
    return reply.json


def codes(gateway: Gateway, document_filter: Mapping[str, object]) -> dict[str, str]:
    """Return the codes of the warnings by field."""
    return {one["field"]: one["code"] for one in query(gateway, filter=document_filter).get("warnings", ())}


@pytest.fixture
def parks(gateway: Gateway) -> Gateway:
    assert gateway.send("POST", f"{INDEX}/documents", body={"documents": DOCUMENTS}).status == 200
    return gateway


@pytest.mark.parametrize(
    ("document_filter", "expected"),
    [
        ({"year": {"$gte": 1700}}, {"year": "type_mismatch"}),
        ({"year": 1742}, {"year": "type_mismatch"}),
        ({"year": {"$in": [1742, 1679.0]}}, {"year": "type_mismatch"}),
        ({"year": {"$ne": 1742}}, {"year": "type_mismatch"}),
        ({"year": {"$gte": "1700", "$lte": 1800}}, {"year": "type_mismatch"}),
        ({"year": {"$in": [1742, "1742"]}}, {}),
        ({"year": "1742"}, {}),
        ({"year": None}, {}),
        ({"year": True}, {}),
        ({"rating": {"$gte": 3}}, {}),
        ({"city": "Berlin", "yeer": 1742}, {"yeer": "field_unknown"}),
        ({"closed": {"$ne": True}}, {"closed": "field_unknown"}),
        ({"yeer": None, "year": {"$lte": 1}}, {"yeer": "field_unknown", "year": "type_mismatch"}),
    ],
)
def test_a_filter_that_cannot_match_as_meant_is_warned_of(
    parks: Gateway, document_filter: Mapping[str, object], expected: Mapping[str, str]
) -> None:
    assert codes(parks, document_filter) == expected


def test_a_warning_names_both_types_and_what_helps(parks: Gateway) -> None:
    answer = query(parks, filter={"year": {"$gte": 1700}})
    (warning,) = answer["warnings"]
    assert (answer["results"], warning["field"]) == ([], "year")
    assert "compares 'year' with a number" in warning["message"]
    assert "strings" in warning["message"]


def test_without_a_warning_the_answer_has_no_such_field(parks: Gateway) -> None:
    assert query(parks, filter={"city": "Berlin"}).keys() == query(parks).keys() == {"index_id", "results", "version"}


def test_the_warnings_follow_from_the_live_documents_alone(gateway: Gateway) -> None:
    """Documents come and go in several segments, which keep deleted rows until they are merged."""
    randomness = random.Random(7)
    stored: dict[str, dict[str, object]] = {}
    values: list[object] = ["1", "x", 1, 2.5, True, None, [1]]
    for step in range(60):
        name = f"d{randomness.randrange(5)}"
        if stored and randomness.random() < 0.4:
            name = randomness.choice(sorted(stored))
            gateway.send("DELETE", f"{INDEX}/documents/{name}")
            del stored[name]
        else:
            stored[name] = {field: randomness.choice(values) for field in "pq" if randomness.random() < 0.7}
            document = {"id": name, "text": f"Text {step}.", "metadata": stored[name]}
            gateway.send("POST", f"{INDEX}/documents/append", body={"documents": [document]})
        expected = {}
        for field in "pqr":
            found = [metadata[field] for metadata in stored.values() if metadata.get(field) is not None]
            if not found:
                expected[field] = "field_unknown"
            elif all(isinstance(value, str) for value in found):
                expected[field] = "type_mismatch"
        assert codes(gateway, {"p": 1, "q": {"$gte": 1}, "r": {"$ne": 1}}) == expected, step


def test_warnings_cost_no_call_of_aws(parks: Gateway) -> None:
    counts = []
    for document_filter in ({"city": "Berlin"}, {"city": 5}):
        with inject(FaultPlan()) as plan:
            query(parks, filter=document_filter)
        counts.append([call.operation for call in plan.calls])
    assert counts[0] == counts[1]
