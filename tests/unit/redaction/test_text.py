"""What a provider says, without what nobody else may know."""

import pytest

from spass.redaction.text import MAX_PROVIDER_CHARACTERS, redact_provider_text


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
def test_keys_and_addresses_are_taken_out(secret: str) -> None:
    cleaned = redact_provider_text(f"It failed with {secret} just now")
    assert cleaned == "It failed with […] just now"


@pytest.mark.parametrize(
    ("text", "secret", "cleaned"),
    [
        ("no such key: hunter two", "hunter two", "no such key: […]"),
        ("the key is xhunter-two-threex", "hunter-two-three", "the key is x[…]x"),
        ("cannot reach gpu or GPU; no gpus", "gpu", "cannot reach […] or […]; no gpus"),
    ],
)
def test_what_is_a_secret_of_this_backend_is_taken_out_whatever_it_looks_like(text: str, secret: str, cleaned: str) -> None:
    assert redact_provider_text(text, secrets=("", secret)) == cleaned


def test_a_secret_that_a_long_text_is_cut_in_shows_no_half() -> None:
    assert "hunt" not in redact_provider_text("[…] " * 20 + "y " * 200 + "hunter-two-three " * 500, secrets=("hunter-two-three",))


@pytest.mark.parametrize(
    "words",
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
def test_what_helps_the_caller_stays(words: str) -> None:
    assert redact_provider_text(words) == words


def test_a_long_or_many_lined_message_becomes_one_short_line() -> None:
    assert redact_provider_text("a\r\nb\x00c") == "a b c"
    assert len(redact_provider_text("word " * 1000)) == MAX_PROVIDER_CHARACTERS


def test_of_a_stack_trace_nothing_is_left() -> None:
    trace = 'Traceback (most recent call last):\n  File "serve.py", line 7, in generate\n    raise Oops(ada)\nOops: ada'
    assert redact_provider_text(f"It failed: {trace}") == "It failed: […]"
