"""Bodies of the wrong shape are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from spass.core.errors import InvalidRequest
from spass.rag.index.documents import QueryRequest, WriteRequest, metadata_json

GOOD = {"id": "a", "text": "x"}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"id": "a"},
        {"id": "a", "text": ""},
        {"id": "a", "text": " \n\t"},
        {"id": "a", "text": "nothing \0 more"},
        {"id": "a", "text": None},
        {"id": "a", "text": 1},
        {"id": "a", "text": "\ud800"},
        {"id": 1, "text": "x"},
        {"id": "", "text": "x"},
        {"id": "-a", "text": "x"},
        {"id": "a\n", "text": "x"},
        {"id": "ä", "text": "x"},
        {"id": "a/b", "text": "x"},
        {"id": "a" * 129, "text": "x"},
        {"id": "a", "text": "x", "metadata": None},
        {"id": "a", "text": "x", "metadata": []},
        {"id": "a", "text": "x", "score": 1},
    ],
)
def test_a_document_of_the_wrong_shape_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WriteRequest.model_validate({"documents": [GOOD, document]})


@pytest.mark.parametrize("body", [{}, {"documents": []}, {"documents": None}, {"documents": [GOOD], "replace": True}, []])
def test_a_write_of_the_wrong_shape_is_refused(body: object) -> None:
    with pytest.raises(ValidationError):
        WriteRequest.model_validate(body)


@pytest.mark.parametrize("name", ["a", "9", "A.b_c:d-e", "a" * 128])
def test_valid_ids_are_accepted(name: str) -> None:
    (document,) = WriteRequest.model_validate({"documents": [{"id": name, "text": "ü"}]}).documents
    assert document.document_id == name


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": ""},
        {"query": " \n"},
        {"query": "\0"},
        {"query": "x" * 8193},
        {"query": "ü" * 4097},
        {"query": "x", "top_k": 0},
        {"query": "x", "top_k": 51},
        {"query": "x", "top_k": "5"},
        {"query": "x", "k": 1},
    ],
)
def test_a_query_of_the_wrong_shape_is_refused(body: object) -> None:
    with pytest.raises(ValidationError):
        QueryRequest.model_validate(body)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("metadata", [{"k": float("inf")}, {"k": "\ud800"}, {"\udfff": 1}, {"k": nested(100_000)}])
def test_metadata_that_json_cannot_express_are_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        metadata_json(metadata)


@pytest.mark.parametrize("depth", [31, 32, 900, 5000])
def test_metadata_deeper_than_32_levels_are_refused(depth: int) -> None:
    body = {"documents": [{"id": "a", "text": "x", "metadata": {"k": nested(depth)}}]}
    if depth < 32:
        (document,) = WriteRequest.model_validate(body).documents
        assert metadata_json(document.metadata)
        return
    with pytest.raises((ValidationError, InvalidRequest)):
        metadata_json(WriteRequest.model_validate(body).documents[0].metadata)
