"""Code of an agent may neither confirm a change nor answer with a secret"""

import json
from ast import literal_eval

import pytest

from tests.functions.gateway import Gateway
from tests.functions.rlm_turns import Researcher, block
from tests.simulated.interpreter import InProcessSandbox

KEY = "'sk-ant-api03-' + 'abcd1234EFGH' * 8"
TOOLS = ["rag_doc_delete"]


@pytest.fixture
def researcher(gateway: Gateway) -> Researcher:
    gateway.services.sandbox = InProcessSandbox()
    documents = [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": documents}).status == 200
    return Researcher(gateway)


def documents(researcher: Researcher) -> list[str]:
    answer = researcher.gateway.send("GET", "/a1/rag/indices/notes/documents").json
    return [document["id"] for document in answer["documents"]]


def test_one_block_cannot_preview_and_confirm_a_change(researcher: Researcher) -> None:
    call = "rag_doc_delete(index_id='notes', doc_id='a'{})"
    both = (f"preview = {call.format('')}", "print(preview)", call.format(", confirm_token=preview['confirm_token']"))
    (cell,) = researcher.cells(researcher.ask(block(*both), "Done.", tools=TOOLS))
    assert "confirm_token_invalid" in cell["error"]
    assert documents(researcher) == ["a", "b"]
    token = literal_eval(cell["output"])["confirm_token"]
    written = call.format(f", confirm_token={token!r}")
    (cell,) = researcher.cells(researcher.ask(block(f"print({written})"), "Done.", tools=TOOLS))
    assert cell == {"output": "{'deleted': True}\n", "error": None, "truncated": 0}
    assert documents(researcher) == ["b"]


@pytest.mark.parametrize("code", [f"FINAL('The key: ' + {KEY})", f"print('The key: ' + {KEY})", f"raise ValueError({KEY})"])
def test_secrets_that_code_puts_together_are_redacted(researcher: Researcher, code: str) -> None:
    answer = researcher.ask(block(code), "Done.")
    assert "[…]" in json.dumps(answer, ensure_ascii=False)
    assert "abcd1234EFGH" * 2 not in json.dumps(answer)
