"""The header ``Prefer`` (RFC 7240)."""

import pytest
from starlette.datastructures import Headers

from spass.web.prefer import RESPOND_ASYNC, prefers


@pytest.mark.parametrize(
    "values",
    [
        ["respond-async"],
        ["Respond-Async"],
        ["wait=10, respond-async"],
        ["wait=10,respond-async ; because=slow"],
        ["handling=lenient", "respond-async"],
        ['return="a, b", respond-async'],
        ['respond-async=""'],
        [", ,respond-async"],
    ],
)
def test_a_preference_is_found_in_every_valid_form(values: list[str]) -> None:
    assert prefers(Headers(raw=[(b"prefer", value.encode()) for value in values]), RESPOND_ASYNC)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["respond-asynchronously"],
        ["wait=respond-async"],
        ['return="a, respond-async, b"'],
        ['return="\\", respond-async"'],
        ["handling=lenient; respond-async"],
    ],
)
def test_similar_texts_are_not_the_preference(values: list[str]) -> None:
    assert not prefers(Headers(raw=[(b"prefer", value.encode()) for value in values]), RESPOND_ASYNC)
