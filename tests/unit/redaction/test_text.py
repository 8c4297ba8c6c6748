"""Redaction of a provider's messages, and its cost for long texts."""

import re

import pytest

from spass.redaction import text as redaction
from spass.redaction.patterns import CREDENTIAL
from spass.redaction.text import MAX_PROVIDER_CHARACTERS, needs_no_redaction, redact, redact_provider_text


@pytest.mark.parametrize(
    "secret",
    [
        "https://internal.example.com:8080/v1/chat?key=1",
        "sk-proj-abcDEF1234567890",
        "sk-ab***********wxyz",
        "xai-Zz12345678",
        "AKIAIOSFODNN7EXAMPLE",
        "org-a1b2c3d4e5",
        "arn:aws:iam::123456789012:role/thing",
        "Bearer abc.def",
        "model-gateway.prod.internal:9000",
        "10.0.12.7:8000",
        "/usr/lib/python3/site.py",
        # keys without a digit
        "sk-proj-abcdefghijklmnop",
        "sk-ant-api-abcdefgh",
        "sk_live_abcdefgh",
        "xai-abcDEF",
        "gsk_abcdefgh",
        "ghp_abcdefghijklmnop",
        "github_pat_abcdefgh_ijkl",
        "hf_abcdefghijkl",
        "AIzaSyabcdefghijkl",
        "AKIAABCDEFGHIJKLMNOP",
        "ASIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI.eyJzdWIiOiJ.abcDEF-_x",
        "xa***yz",
        # hosts without a scheme
        "gpu-box:8000",
        "localhost:11434",
        "myhost:9000/v1/chat",
        "gateway.acme.de",
        "Gateway.Acme.DE",
        "gateway.acme.at",
        "x.svc.cluster",
        "x.svc.cluster.local",
        "[::1]:8080",
        "[2001:db8::17]:8080",
        "fe80::1",
        "2001:db8:0:0:0:0:0:17",
        "10.0.12.7",
        # paths
        r"C:\app\x.py",
        r"C:\Program Files\app\x.py",
        r"\\share\keys\x",
        "/app.py",
        "/app",
        "~/.env",
        "/.env",
    ],
)
def test_keys_and_addresses_are_redacted(secret: str) -> None:
    assert redact_provider_text(f"It failed with {secret} just now") == "It failed with […] just now"


@pytest.mark.parametrize(
    ("text", "secret", "redacted"),
    [
        ("no such key: hunter two", "hunter two", "no such key: […]"),
        ("the key is xhunter-two-threex", "hunter-two-three", "the key is x[…]x"),
        ("cannot reach gpu or GPU; no gpus", "gpu", "cannot reach […] or […]; no gpus"),
    ],
)
def test_secrets_of_the_backend_are_redacted(text: str, secret: str, redacted: str) -> None:
    assert redact_provider_text(text, secrets=("", secret)) == redacted


def test_cutting_a_long_text_shows_no_part_of_a_secret() -> None:
    assert "hunt" not in redact_provider_text("[…] " * 20 + "y " * 200 + "hunter-two-three " * 500, secrets=("hunter-two-three",))


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000/8192 tokens.",
        "Invalid value: 'foo'. Supported values are: 'auto', 'none', and/or 'required'.",
        "messages.0.content: text content blocks must be non-empty",
        "The model `gpt-4o-mini-2024-07-18` does not exist or you do not have access to it.",
        "Unknown field projection_2024_x; the keyword1234 is taken.",
        "temperature: 3.5 is above the maximum of 2.0, e.g. use 1",
        "messages.0.content.text, messages[1].tool_calls.id and tool_call.id: Input should be a valid string.It is none",
        "model llama3:8b of 2026-04-30T10:30:00, at 12:30:45; std::vector",
        "tools.0.custom.input_schema: JSON schema is invalid at #/properties/city (and/or 9000 / 8192), see </think>",
        "claude-opus-4.7, gpt-5.2, meta-llama/llama-4-scout, grok-4 or text-embedding-3-small; sk-ip a task-force",
    ],
)
def test_messages_without_secrets_are_unchanged(message: str) -> None:
    assert redact_provider_text(message) == message


def test_a_message_becomes_one_line_of_at_most_500_characters() -> None:
    assert redact_provider_text("a\r\nb\x00c") == "a b c"
    assert len(redact_provider_text("word " * 1000)) == MAX_PROVIDER_CHARACTERS


def test_a_stack_trace_is_redacted_as_a_whole() -> None:
    trace = 'Traceback (most recent call last):\n  File "serve.py", line 7, in generate\n    raise Oops(ada)\nOops: ada'
    assert redact_provider_text(f"It failed: {trace}") == "It failed: […]"


class CountingPattern:
    """A pattern that adds up the squares of the lengths that it searches."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.work = 0

    def search(self, text: str) -> re.Match[str] | None:
        self.work += len(text) ** 2
        return self._pattern.search(text)

    def sub(self, replacement: str, text: str) -> str:
        self.work += sum(len(run) ** 2 for run in text.split())
        return self._pattern.sub(replacement, text)


@pytest.mark.parametrize("separator", ["", " "])
def test_the_work_to_redact_a_long_text_is_linear(monkeypatch: pytest.MonkeyPatch, separator: str) -> None:
    credential = CountingPattern(CREDENTIAL)
    monkeypatch.setattr(redaction, "CREDENTIAL", credential)
    text = separator.join("glpat-" * 300 for _ in range(100))
    redact(f"see https://x {text}")
    needs_no_redaction(text)
    assert credential.work <= len(text) * 2048


def test_a_run_of_more_than_2048_characters_is_redacted_as_a_whole() -> None:
    assert redact(f"It failed with {'glpat-' * 1000} today") == "It failed with […] today"
    assert not needs_no_redaction("a" * 2049)
    assert redact("a" * 2048) == "a" * 2048
