"""`spass job`: a job card from the command line."""

import pytest

from tests.unit.cli.command import spass
from tests.unit.sdk.fake_gateway import ASK_EVENTS, error_answer, events_answer, fake_gateway

CARD = ("job", "--agent", "dir-code", "--title", "Document the entry point")


def test_the_arguments_become_the_card_and_the_answer_is_printed() -> None:
    files, lines = ("--file", "src/main.py", "--file", "README.md"), ("--acceptance", "It has a docstring.")
    with fake_gateway(lambda _: events_answer(ASK_EVENTS)) as gateway:
        code, out, err = spass(gateway.url, *CARD, *files, *lines, "--model", "m", "--workspace", "w", "-", stdin="Add one.\n")
    assert (code, out) == (0, "It is 30447.\n")
    assert "[calculator]" in err
    (request,) = gateway.requests
    assert request.path == "/c1/agents/dir-code/job_card"
    assert request.json == {
        "title": "Document the entry point",
        "task": "Add one.",
        "files": ["src/main.py", "README.md"],
        "acceptance": ["It has a docstring."],
        "model": "m",
        "workspace": "w",
    }


def test_a_card_has_only_the_fields_that_were_given() -> None:
    with fake_gateway(lambda _: events_answer(ASK_EVENTS)) as gateway:
        assert spass(gateway.url, *CARD, "Add one.").code == 0
    assert gateway.requests[0].json == {"title": "Document the entry point", "task": "Add one."}


def test_a_refused_card_is_an_error_answer() -> None:
    with fake_gateway(lambda _: error_answer(404, "agent_not_found", "There is no agent 'dir-code'.")) as gateway:
        code, out, err = spass(gateway.url, *CARD, "Add one.")
    assert (code, out, err.splitlines()[0]) == (1, "", "spass: agent_not_found: There is no agent 'dir-code'.")


@pytest.mark.parametrize("missing", ["--agent", "--title"])
def test_a_card_needs_an_agent_and_a_title(missing: str) -> None:
    place = CARD.index(missing)
    code, _, err = spass("http://127.0.0.1:9", *CARD[:place], *CARD[place + 2 :], "Add one.")
    assert code == 2
    assert missing in err
