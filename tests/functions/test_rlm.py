"""The kind ``rlm`` from outside: code over a long context, queries of a model, and what each of them may cost."""

import json
import random
from typing import Any

import pytest

from spass.calls.datamark import remove_marks
from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import AttemptFailed, BackendContextLength
from spass.models.types import ChatDelta
from tests.functions.gateway import Gateway
from tests.functions.rlm_turns import SANDBOXES, Researcher, block

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "larch", "marsh")
NEEDLES = {7: "MANGO", 12_345: "PAPAYA", 24_999: "LYCHEE"}


@pytest.fixture(params=SANDBOXES, ids=["without confinement", "in processes"][: len(SANDBOXES)])
def researcher(gateway: Gateway, request: pytest.FixtureRequest) -> Researcher:
    gateway.services.sandbox = request.param()
    return Researcher(gateway)


@pytest.mark.parametrize(
    "params",
    [
        {"sub_model": 3},
        {"sub_temperature": 2.1},
        {"sub_temperature": -0.1},
        {"sub_max_tokens": 0},
        {"max_output_chars": 0},
        {"max_output_chars": 100_001},
        {"max_sub_calls": -1},
        {"max_sub_calls": 4097},
        {"max_sub_calls": True},
        {"sub_modle": "small"},
    ],
)
def test_a_bad_parameter_is_refused_before_any_model_call(gateway: Gateway, params: dict[str, Any]) -> None:
    reply = Researcher(gateway).send("Yes.", params=params)
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", f"params.{next(iter(params))}")
    assert gateway.model.requests == []


def haystack() -> list[str]:
    """Return 25,000 different lines, 2 MB of text, three of which name a fruit."""
    rng = random.Random(16)
    lines = [f"{number:06} {' '.join(rng.choices(WORDS, k=13))}" for number in range(25_000)]
    for number, fruit in NEEDLES.items():
        lines[number] += f" NEEDLE {fruit}"
    return lines


def test_needles_in_two_megabytes_are_found_and_only_what_code_sent_is_read(researcher: Researcher) -> None:
    lines = haystack()
    context = "\n".join(lines)
    assert len(context) >= 2_000_000
    researcher.sub = lambda prompt: prompt.split()[-1].title()
    answer = researcher.ask(
        block("lines = context.splitlines()", "print(len(lines), lines[0])"),
        block("found = [line for line in lines if 'NEEDLE' in line]", "print(len(found))"),
        block("fruits = llm_batch([f'Which fruit? {line}' for line in found])", "FINAL(', '.join(fruits))"),
        context=context,
    )
    assert (answer["content"], answer["finish_reason"], answer["turns"]) == ("Mango, Papaya, Lychee", "stop", 3)
    sent = {f"Which fruit? {lines[number]}" for number in NEEDLES}
    assert {request.messages[0].content for request in researcher.queries} == sent
    assert f"`context` is a str of {len(context)} characters in 25000 lines." in researcher.questions[0].messages[0].content
    printed = {lines[0]}
    for request in researcher.questions:
        text = "\n".join(remove_marks(message.content) for message in request.messages)
        assert {line for line in lines if line in text} <= printed
    assert "25000 " + lines[0] in researcher.read()


def test_74_sub_calls_have_the_model_the_temperature_and_the_limit_of_the_kind(researcher: Researcher) -> None:
    reply = researcher.send(
        block("answers = [llm_query(f'one {number}') for number in range(10)]", "print(len(answers))"),
        block("answers += llm_batch([f'many {number}' for number in range(64)])", "print(len(answers))"),
        block("assert answers[0] == 're: one 0' and answers[-1] == 're: many 63', answers", "FINAL({'a': 1})"),
        params={"sub_model": "dear"},
    )
    assert (reply.status, json.loads(reply.json["content"])) == (200, {"a": 1})
    assert len(researcher.queries) == 74
    assert {(request.model, request.temperature, request.max_tokens) for request in researcher.queries} == {("dear", 0.3, 1024)}
    assert {request.tools for request in researcher.queries} == {()}
    assert {(request.model, request.temperature, request.max_tokens) for request in researcher.questions} == {
        ("small", 0.7, 2048)
    }
    assert reply.headers["spass-cost-sub-calls"] == "77"
    assert reply.json["usage"] == {"prompt_tokens": 770, "completion_tokens": 385, "total_tokens": 1155}
    assert [cell["output"] for cell in researcher.cells(reply.json)] == ["10\n", "74\n", ""]


def test_the_parameters_of_the_queries_can_be_set_and_the_model_is_the_agents_own(researcher: Researcher) -> None:
    researcher.ask(block("FINAL(llm_query('?'))"), params={"sub_temperature": 1.5, "sub_max_tokens": 9})
    (query,) = researcher.queries
    assert (query.model, query.temperature, query.max_tokens) == ("small", 1.5, 9)


def test_a_reply_without_code_is_the_answer(researcher: Researcher) -> None:
    answer = researcher.ask("It is 4.", context="abc")
    assert (answer["content"], answer["turns"], answer["tool_results"]) == ("It is 4.", 1, [])


@pytest.mark.parametrize("text", ['FINAL("x")', "```js\n1\n```", "Use `FINAL(1)`.", "```\nFINAL(1)\n```"])
def test_code_outside_of_a_block_of_python_is_text(researcher: Researcher, text: str) -> None:
    assert researcher.ask(text)["content"] == text


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("'plain'", "plain"),
        ("{'a': 1}", {"a": 1}),
        ("[1, None, True]", [1, None, True]),
        ("7", 7),
        ("{1, 2}", "{1, 2}"),
        ("''", ""),
        ("'done')\nFINAL('twice'", "done"),
    ],
)
def test_the_answer_is_a_text_as_it_is_and_otherwise_json_and_otherwise_str(
    researcher: Researcher, value: str, content: Any
) -> None:
    answer = researcher.ask(block(f"FINAL({value})"))["content"]
    assert (answer if isinstance(content, str) else json.loads(answer)) == content


@pytest.mark.parametrize(
    ("context", "value"),
    [
        ("abc", "abc"),
        ({"memory_results": ["abc"]}, "abc"),
        ({"memory_results": ["abc", "def"]}, ["abc", "def"]),
        ({"memory_results": [{"a": [1, None]}]}, [{"a": [1, None]}]),
        (None, []),
    ],
)
def test_the_memory_results_are_the_context(researcher: Researcher, context: Any, value: Any) -> None:
    answer = researcher.ask(block("FINAL({'context': context})"), context=context)
    assert json.loads(answer["content"]) == {"context": value}


def test_the_passages_of_an_index_are_the_context_and_in_no_prompt(researcher: Researcher) -> None:
    gateway = researcher.gateway
    notes = {"documents": [{"id": "a", "text": "The gate was built in 1791."}]}
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body=notes).status == 200
    (gateway.services.settings.agents / "long.yaml").write_text("name: long\nkind: rlm\nmodel: small\nrag_index: notes\n")
    answer = researcher.ask(block("import re", "FINAL(re.search('[0-9]{4}', context)[0])"), agent="long", model=None)
    assert answer["content"] == "1791"
    assert "1791" not in researcher.read()


def test_a_replaced_system_prompt_is_what_the_model_reads(researcher: Researcher) -> None:
    researcher.ask("Yes.", system_prompt="Count with code.", context="abc")
    (request,) = researcher.questions
    system, question = request.messages
    assert system.content.startswith("Count with code.\n\n`context` is a str of 3 characters")
    assert "llm_query" not in system.content
    assert question.content == "How many?"


@pytest.mark.parametrize(("limit", "kept"), [(None, 10_000), (50, 50)])
def test_output_that_is_too_long_is_cut_and_counted(researcher: Researcher, limit: int | None, kept: int) -> None:
    params = {} if limit is None else {"max_output_chars": limit}
    answer = researcher.ask(block("print('x' * 12_344)"), "Done.", params=params)
    (cell,) = researcher.cells(answer)
    assert (cell["output"], cell["error"], cell["truncated"]) == ("x" * kept, None, 12_345 - kept)
    assert f"[{12_345 - kept} more characters" in researcher.read()
    assert "x" * (kept + 1) not in researcher.read()


def test_the_model_reads_a_long_output_of_which_the_record_keeps_the_beginning(researcher: Researcher) -> None:
    answer = researcher.ask(block("print('x' * 80_000)"), "Done.", params={"max_output_chars": 100_000})
    (cell,) = researcher.cells(answer)
    assert len(cell["output"]) + cell["truncated"] == 80_001
    assert 50_000 < len(cell["output"]) < 64 * 1024
    assert "x" * 80_000 in researcher.read()


def test_the_limit_of_turns_is_flagged_and_the_last_output_is_the_answer(researcher: Researcher) -> None:
    answer = researcher.ask(block("n = globals().get('n', 0) + 1", "print('cell', n)"))
    assert (answer["content"], answer["turns"], answer["finish_reason"]) == ("cell 10\n", 10, "max_turns")
    assert answer["metadata"] == {"max_turns_exceeded": True}
    assert "print" not in answer["content"]


def test_the_code_of_the_last_reply_can_still_answer(researcher: Researcher) -> None:
    answer = researcher.ask(block("FINAL(4)"), params={"max_turns": 1})
    assert (answer["content"], answer["finish_reason"], answer["metadata"]) == ("4", "stop", {})


def test_what_code_breaks_is_an_error_that_the_model_reads(researcher: Researcher) -> None:
    answer = researcher.ask(block("kept = 5"), block("1/0"), block("FINAL(kept)"))
    assert (answer["content"], answer["turns"]) == ("5", 3)
    assert [result["success"] for result in answer["tool_results"]] == [True, False, True]
    assert "ZeroDivisionError" in researcher.cells(answer)[1]["error"]
    assert "Error: " in researcher.read()


QUERIES = [
    ("llm_query(4)", "invalid_request"),
    ("llm_query('')", "invalid_request"),
    ("llm_query('\\u200b')", "input_refused"),
    ("llm_query('x' * 1_000_001)", "input_refused"),
    ("llm_query('too long')", "context_length_exceeded"),
    ("llm_query('broken')", "upstream_error"),
    ("llm_batch(['?'] * 65)", "invalid_request"),
]


def sub_model(prompt: str) -> str | Exception:
    failures = {
        "too long": BackendContextLength("Too long.", status=400),
        "broken": AttemptFailed("down"),
    }
    return failures.get(prompt, f"re: {prompt}")


@pytest.mark.parametrize(("call", "code"), QUERIES)
def test_a_query_that_fails_raises_an_error_with_its_code(researcher: Researcher, call: str, code: str) -> None:
    researcher.sub = sub_model
    lines = ("try:", f"    {call}", "except LLMError as error:", "    FINAL(error.code)")
    assert researcher.ask(block(*lines))["content"] == code


def test_a_query_that_fails_in_a_batch_is_a_text_with_its_code(researcher: Researcher) -> None:
    researcher.sub = sub_model
    answer = researcher.ask(block("FINAL(llm_batch(['a', 'too long', 'broken', 'b']))"))
    expected = ["re: a", "[error: context_length_exceeded]", "[error: upstream_error]", "re: b"]
    assert json.loads(answer["content"]) == expected


def test_the_101st_query_of_a_turn_fails(researcher: Researcher) -> None:
    answer = researcher.ask(
        block("first = llm_batch(['?'] * 64)"),
        block(
            "second = llm_batch(['?'] * 64)",
            "FINAL([(first + second).count(text) for text in ('re: ?', '[error: too_many_sub_calls]')])",
        ),
    )
    assert json.loads(answer["content"]) == [100, 28]
    assert len(researcher.queries) == 100


def test_the_number_of_queries_can_be_set(researcher: Researcher) -> None:
    lines = ("llm_query('?')", "try:", "    llm_query('?')", "except LLMError as error:", "    FINAL(error.code)")
    assert researcher.ask(block(*lines), params={"max_sub_calls": 1})["content"] == "too_many_sub_calls"


def test_a_budget_that_runs_out_midway_is_an_error_with_its_code(researcher: Researcher) -> None:
    researcher.sub = lambda _: [ChatDelta("fine", finish_reason=FinishReason.STOP, usage=TokenUsage(400_000, 0))]
    researcher.gateway.set_config(monthly_budget_usd=1)
    lines = ["codes = []", "for _ in range(5):", "    try:", "        codes.append(llm_query('?'))"]
    lines += ["    except LLMError as error:", "        codes.append(error.code)"]
    answer = researcher.ask(block(*lines, "FINAL(codes)"))
    codes = json.loads(answer["content"])
    paid = len(researcher.queries)
    assert codes == ["fine"] * paid + ["budget_exceeded"] * (5 - paid)
    assert 1 <= paid < 5
    # The agent's own next call has no budget either, so this turn fails.
    assert (reply := researcher.send(block("print(1)"))).status == 429
    assert reply.code == "budget_exceeded"


def test_a_model_outside_of_the_tokens_list_is_an_error_with_its_code(researcher: Researcher) -> None:
    lines = ("try:", "    llm_query('?')", "except LLMError as error:", "    FINAL(error.code)")
    for model, code in (("dear", "model_not_allowed"), ("absent", "model_not_found"), ("mini-embed", "invalid_request")):
        answer = researcher.ask(block(*lines), params={"sub_model": model}, token="demo-token")
        assert answer["content"] == code
    assert researcher.queries == []
