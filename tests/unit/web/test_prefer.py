"""The header ``Prefer`` (RFC 7240)."""

import pytest
from starlette.datastructures import Headers

from spass.web.sessions import RESPOND_ASYNC, prefers


@pytest.mark.parametrize(
    ("values", "preferred"),
    [
        (["respond-async"], True),
        (["Respond-Async"], True),
        (["wait=10, respond-async"], True),
        (["wait=10,respond-async ; because=slow"], True),
        (["handling=lenient", "respond-async"], True),
        (['return="a, b", respond-async'], True),
        (['respond-async=""'], True),
        ([", ,respond-async"], True),
        ([], False),
        ([""], False),
        (["respond-asynchronously"], False),
        (["wait=respond-async"], False),
        (['return="a, respond-async, b"'], False),
        (['return="\\", respond-async"'], False),
        (["handling=lenient; respond-async"], False),
    ],
)
def test_a_preference_is_found_in_every_valid_form_and_in_no_similar_text(values: list[str], preferred: bool) -> None:
    assert prefers(Headers(raw=[(b"prefer", value.encode()) for value in values]), RESPOND_ASYNC) == preferred
