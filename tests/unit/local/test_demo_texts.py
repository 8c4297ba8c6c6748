"""The demo's texts fit the gateway's limits."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.demo_texts import MAX_TEXT_BYTES, documentation
from local.home import ROOT


def test_the_documentation_becomes_valid_documents() -> None:
    documents = documentation(ROOT / "docs")
    assert 10 < len(documents) <= 256
    assert len({document["id"] for document in documents}) == len(documents)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", document["id"]) for document in documents)


@given(st.text(st.sampled_from("aä \n#€"), max_size=400), st.integers(1, 60))
def test_no_document_is_over_the_limit(tmp_path_factory: pytest.TempPathFactory, text: str, times: int) -> None:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "page.md").write_text(text * times)
    for document in documentation(folder, ["page"]):
        assert 0 < len(document["text"].encode()) <= MAX_TEXT_BYTES
