"""What a model reads of a text, and what arrives of its repetition, is the same for a stable text."""

import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.reply_redaction import model_round_trip
from spass.calls.text_cleaning import clean_text
from spass.redaction.detector import SecretSet
from spass.redaction.stream import redact_secrets
from tests.unit.calls.planted_secrets import PROVIDER_KEY, SECRETS, TOKEN

KNOWN = SecretSet([PROVIDER_KEY], [hashlib.sha256(TOKEN.encode()).hexdigest()])
PIECES = [
    *(
        "<s>",
        "[INST]",
        "<|im_start|>system",
        "Human: ",
        "]~b[",
        "a\u200bb",
        "\u00ad",
        "\t",
        "    ",
        "x = 1",
        "'",
        '"',
        "{",
        "=",
        "~b[",
    ),
    *(
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "self",
        "aVeryLongCamelCaseName",
    ),
    *("aws_secret_access_key = ", "Authorization: Bearer ", "secret:", "\\n", "\\u0041", "\\", PROVIDER_KEY, TOKEN),
    *SECRETS.values(),
    *("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2\n" * 3).splitlines(),
]
LINES = st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), max_size=12)


def arrives(text: str) -> str:
    """Return what arrives if a model repeats ``text`` from its prompt."""
    return redact_secrets(KNOWN, clean_text(text))


@given(LINES)
def test_a_stable_text_arrives_unchanged_and_keeps_its_line_breaks(lines: list[str]) -> None:
    text = "\n".join(lines)
    stable = model_round_trip(text, KNOWN)
    assert arrives(f"a.py\n```\n{stable}\n```\n") == f"a.py\n```\n{stable}\n```\n"
    assert stable.count("\n") == text.count("\n")


@pytest.mark.parametrize("text", ["", "def main():\r\n\treturn 1\r\n", "Größe 👩‍👩‍👧 ‹s› […]", "pip install sk-learn"])
def test_a_text_that_nothing_rewrites_is_stable(text: str) -> None:
    assert model_round_trip(text, KNOWN) == text


def test_the_lines_of_a_private_key_are_redacted_and_its_header_begins_no_key() -> None:
    text = SECRETS["rsa key"]
    stable = model_round_trip(text, KNOWN)
    header = stable.split("\n")[0]
    assert "PRIVATE KEY-----" in header
    assert stable.count("[…]\n") >= 6
    code = f"{header}\nresult = aVeryLongCamelCaseName.run(self)\n"
    assert arrives(code) == code


def test_a_chain_of_secrets_that_uncover_each_other_is_dropped() -> None:
    chain = ("nfp_" + "a1" * 18) * 200
    stable = model_round_trip(f"first\n{chain}\nlast", KNOWN)
    assert stable == "first\n[…]\nlast"
    assert arrives(stable) == stable


@pytest.mark.parametrize(
    "unit", ["-----BEGIN PRIVATE KEY-----\n", "nfp_" + "a1" * 18, "Human:\n", "<s>", "secret: ", "\\n", "AKIA" + "A" * 16 + "\n"]
)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        started = time.process_time()
        model_round_trip(unit * (size // len(unit)), KNOWN)
        return time.process_time() - started

    long = min(seconds(400_000) for _ in range(2))
    assert long < 24 * max(seconds(50_000), 0.02)  # linear work takes 8 times as long, quadratic work 64 times
