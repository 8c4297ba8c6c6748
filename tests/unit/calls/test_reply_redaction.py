"""Test that secrets are redacted in answers of models, for every split of the answer into deltas."""

import base64
import hashlib
import json
import random
import string
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.reply_redaction import ReplyRedactor, build_redactor
from spass.core.errors import UpstreamRejected
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.types import ChatDelta, ChatReply
from spass.redaction.redactor import Redactor
from spass.redaction.stream import MAX_HELD_CHARACTERS
from spass.tenancy.config import GatewayConfig
from tests.unit.calls.planted_secrets import BY_CONTEXT, PROVIDER_KEY, SECRETS, TOKEN, identifying_parts, set_credentials
from tests.unit.collected_replies import collect_deltas

CONFIG = GatewayConfig.model_validate(
    {
        "models": [{"name": "mini-embed", "kind": "embedding", "dimensions": 3, "context_window": 16}],
        "defaults": {"embedding_model": "mini-embed"},
        "tenants": [{"id": "acme", "tokens": [{"id": "one", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]}],
    }
)
REDACTED = "[…]"
KINDS = pytest.mark.parametrize("kind", SECRETS)

HARMLESS_TEXTS: Mapping[str, str] = {
    "paths": "See /etc/passwd, /var/task/app.py, ~/.ssh/id_rsa and C:\\Users\\ada\\new\\report.txt.",
    "hosts": "Call https://api.example.com:8443/v1/chat?limit=10&cursor=abc#top or db.internal:5432.",
    "arns": "arn:aws:dynamodb:eu-central-1:123456789012:table/spass-Table-1ABCDEF",
    "hashes": f"commit {hashlib.sha1(b'x').hexdigest()}, sha256:{hashlib.sha256(b'x').hexdigest()}, md5 {'d41d8cd98f00b204' * 2}",
    "aws and a hash": f"aws secret rotation came with {hashlib.sha1(b'y').hexdigest()}",
    "uuids": "550e8400-e29b-41d4-a716-446655440000 and {550E8400-E29B-41D4-A716-446655440000}",
    "our ids": "ses_01hzxk2v3w4x5y6z7a8b9c0d1e req_01hzxk2v3w4x5y6z7a8b9c0d1e call_abc toolu_01A09q90qw90lq917835lq9",
    "code": "from sklearn import svm  # pip install sk-learn; key = os.environ['OPENAI_API_KEY']; hf_hub_download()",
    "names of keys": "Put OPENAI_API_KEY=sk-... or AWS_SECRET_ACCESS_KEY=<secret> into .env; ghp_xxx, AKIA…, xoxb-your-token.",
    "urls with a placeholder": "postgres://user:password@localhost:5432/a and redis://:password@cache/0, git@github.com:a/b.git",
    "headers": "curl -H 'Authorization: Bearer YOUR_TOKEN' -H 'X-Api-Key: <key>'",
    "bearers": "Bearer YOUR_LONG_ACCESS_TOKEN_HERE, bearer authentication-with-json-web-tokens, the bearer: d41d8cd98f00b204",
    "pem in words": "It begins with `-----BEGIN PRIVATE KEY-----` and ends with `-----END PRIVATE KEY-----`, base64 between.",
    "a certificate": "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END CERTIFICATE-----",
    "an ssh public key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ3fFqBJ0Z2m8yq0VQyXn3Yc3VnJr2R0d8Zr3zqVYdL ada@home",
    "an image": "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "german": "Größenänderungen überprüfen: Donaudampfschifffahrtsgesellschaftskapitän, Straßenverkehrsordnung.",
    "chinese": "你好，世界。这是一个没有空格的长句子，里面没有任何秘密，只有普通的文字。" * 20,
    "arabic": "مرحبا بالعالم، هذا نص عادي لا يحتوي على أي سر.",
    "emoji": "👩‍👩‍👧‍👦 fine 🇩🇪 \u202eabc\u202c",
    "latex": r"\frac{\alpha}{\beta} \nabla \times \mathbf{B} = \mu_0 \mathbf{J}, \u and \u00",
    "math": "1//0 is no number; 3.14159265358979323846264338327950288419716939937510",
    "markdown": "| a | b |\n|-----|-----|\n**bold** ~~gone~~ `code` [link](https://example.com/a_b-c) " + "-" * 60,
    "json": json.dumps({"a": ["x\ny", {"b": 'tab\t"quoted" \\ / ü'}], "n": 1e-9}),
    "escaped emoji": r'{"text": "\ud83d\ude00abcdefghij \ud83dabcdefghij\u4f60\u597d"}',
    "half a surrogate pair": "abcdefgh\ud83d and on",
    "css and svg": "d='M10.5,3.2c0-1.1-.9-2-2-2h-3 z' #ff00aa 0x7ffe1234abcd translate(10 20)",
    "names of things": f"cache-key-{'d41d8cd98f00b204' * 2}, xapp-store-platform-demo-2024-final; "
    "ModuleConfigurationBuilder.Config.createTheDefaultConfigurationBuilder()",
    "versions": "text-embedding-3-small, claude-opus-4.7, gpt-4o-mini-2024-07-18, xai-explainability-toolbox-for-trees",
    "asked about": "The secret is that the token stands in the key; aws is a cloud, its secret access key 40 characters.",
}


def redactor(keys: Sequence[str] = (PROVIDER_KEY,)) -> Redactor:
    return build_redactor(CONFIG, lambda: keys)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)


def collect_redacted(deltas: Iterable[ChatDelta], answer_redactor: ReplyRedactor | None = None) -> ChatReply:
    """Return the whole answer that a client receives."""
    answer_redactor = answer_redactor or ReplyRedactor(redactor())
    redacted = [answer_redactor.feed(delta) for delta in deltas]
    return collect_deltas([*redacted, answer_redactor.flush()])


def redact_text(text: str, cuts: Iterable[int] = ()) -> str:
    """Return the redacted ``text`` when it arrives in pieces, split at ``cuts``."""
    return collect_redacted(map(ChatDelta, _split(text, cuts))).message.content


def _split(text: str, cuts: Iterable[int]) -> list[str]:
    borders = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


def reveals(text: str, kind: str) -> bool:
    return any(part in text for part in identifying_parts(kind))


@KINDS
def test_a_secret_is_redacted_and_the_text_around_it_stays(kind: str) -> None:
    answer = redact_text(f"Of course, it is {SECRETS[kind]} and nothing else.")
    assert not reveals(answer, kind)
    assert REDACTED in answer
    assert answer.startswith("Of course, it is ")
    assert answer.endswith(" and nothing else.")


@KINDS
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "'{}'",
        "`{}`",
        '{{"key":"{}"}}',
        "({}).",
        "**{}**",
        "_{}_",
        "--{}--",
        "key={}",
        "key: {},",
        "|{}|",
        "<{}>",
        "ü{}ö",
        "a\n{}\nb",
        "see {}; end",
    ],
)
def test_every_spelling_of_a_secret_is_redacted(kind: str, form: str) -> None:
    assert not reveals(redact_text(form.format(SECRETS[kind])), kind)


def test_a_value_with_a_secret_name_is_redacted_in_nested_json() -> None:
    text = json.dumps(json.dumps(json.dumps({"SecretAccessKey": BY_CONTEXT["aws secret key"][1]})))
    assert not reveals(redact_text(text), "aws secret key")


@KINDS
def test_a_secret_split_at_any_place_is_redacted(kind: str) -> None:
    text = f"It is {SECRETS[kind]}, ok?"
    whole = redact_text(text)
    for cut in range(1, min(len(text), 400)):
        assert redact_text(text, [cut]) == whole, cut


@KINDS
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_secret_in_small_pieces_is_redacted(kind: str, size: int) -> None:
    text = f"It is {SECRETS[kind]}, ok?"
    assert redact_text(text, range(size, len(text), size)) == redact_text(text)


@KINDS
def test_no_prefix_of_a_stream_contains_part_of_a_secret(kind: str) -> None:
    answer_redactor = ReplyRedactor(redactor())
    sent_text = ""
    for character in f"It is {SECRETS[kind]}":
        sent_text += answer_redactor.feed(ChatDelta(character)).content
        assert not reveals(sent_text, kind)


@KINDS
def test_refusals_and_all_fields_of_tool_calls_are_redacted(kind: str) -> None:
    secret = SECRETS[kind]
    arguments = json.dumps({"text": f"first\n{secret}\nlast"})
    for size in (1, 5, len(arguments)):
        pieces = [ToolCallDelta(0, arguments=part) for part in _split(arguments, range(size, len(arguments), size))]
        first = ChatDelta(tool_calls=(ToolCallDelta(0, f"call {secret}", f"tool {secret}"),))
        refusals = [ChatDelta(refusal=part) for part in _split(f"I won't say {secret}.", range(size, len(secret), size))]
        reply = collect_redacted([*refusals, first, *(ChatDelta(tool_calls=(piece,)) for piece in pieces)])
        (call,) = reply.message.tool_calls
        assert json.loads(call.arguments)["text"].startswith("first\n")
        assert json.loads(call.arguments)["text"].endswith("\nlast")
        for out in (reply.refusal, call.arguments, json.loads(call.arguments)["text"], call.name, call.id):
            assert REDACTED in out
            assert not reveals(out, kind)


@KINDS
def test_a_secret_with_json_escapes_is_redacted(kind: str) -> None:
    before, secret, after = BY_CONTEXT.get(kind, ("", SECRETS[kind], ""))
    escaped = secret.replace("/", "\\/").replace("k", "\\u006b").replace("A", "\\u0041")
    escaped = json.dumps(before)[1:-1] + escaped.replace("\n", "\\n") + json.dumps(after)[1:-1]
    arguments = f'{{"text":"{escaped}","then":"more"}}'
    for cuts in ((), range(1, len(arguments))):
        pieces = [ChatDelta(tool_calls=(ToolCallDelta(0, arguments=part),)) for part in _split(arguments, cuts)]
        decoded = json.loads(collect_redacted(pieces).message.tool_calls[0].arguments)
        assert not reveals(decoded["text"], kind)
        assert decoded["then"] == "more"


@pytest.mark.parametrize("text", HARMLESS_TEXTS.values(), ids=HARMLESS_TEXTS.keys())
def test_harmless_text_about_secrets_is_unchanged(text: str) -> None:
    assert redact_text(text) == text
    assert redact_text(text, range(1, len(text))) == text


def test_confirm_tokens_are_unchanged() -> None:
    generator = random.Random(2)
    for _ in range(2000):
        token = base64.urlsafe_b64encode(generator.randbytes(54)).decode()
        assert redact_text(f'{{"confirm_token": "{token}"}}') == f'{{"confirm_token": "{token}"}}'


def test_images_and_files_in_base64_are_unchanged() -> None:
    generator = random.Random(1)
    alphabet = string.ascii_letters + string.digits + "+/"
    for length in (100, 1000, 5000, 50_000):
        image = "data:image/png;base64," + "".join(generator.choices(alphabet, k=length)) + "=="
        assert redact_text(image) == image
        assert redact_text(image, range(100, len(image), 100)) == image


def test_ids_are_unchanged() -> None:
    generator = random.Random(3)
    for _ in range(500):
        some_id = uuid.UUID(bytes=generator.randbytes(16))
        text = f"{some_id} {some_id.hex} {generator.randbytes(32).hex()} {generator.randbytes(20).hex()}"
        assert redact_text(text) == text


_PIECES = st.one_of(
    st.sampled_from([*SECRETS.values()]),
    st.sampled_from([*HARMLESS_TEXTS.values()]),
    st.text(max_size=12),
    st.text(alphabet=string.printable, max_size=40),
    st.sampled_from(
        ["sk-", "eyJ", "\\", "\\u00", "\\n", "-----BEGIN PRIVATE KEY-----", "aws_secret_access_key=", "://", "x" * 900, " "]
    ),
)


@given(st.lists(_PIECES, max_size=6), st.data())
def test_the_collected_stream_is_the_blocking_answer(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    whole = redact_text(text)
    assert redact_text(text, cuts) == whole
    assert redact_text(text, range(1, len(text), 3)) == whole


@given(st.sampled_from(sorted(SECRETS)), st.text(max_size=20), st.text(max_size=20), st.data())
def test_a_secret_is_redacted_for_any_split_of_the_answer(kind: str, before: str, after: str, data: st.DataObject) -> None:
    text = f"{before} {SECRETS[kind]} {after}"
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    answer = redact_text(text, cuts)
    assert not reveals(answer, kind)
    assert answer.startswith(before)
    assert answer.endswith(after)


@given(st.text(), st.lists(st.integers(0, 100), max_size=6))
def test_a_text_without_secrets_is_unchanged(text: str, cuts: list[int]) -> None:
    assert redact_text(text, [min(cut, len(text)) for cut in cuts]) == text


@pytest.mark.parametrize("first", ["Hello", "The", " And", "I", "Grüße", "你好", "42", "{", '"', "\n"])
def test_the_first_delta_of_an_answer_is_not_held(first: str) -> None:
    assert ReplyRedactor(redactor()).feed(ChatDelta(first)).content == ("Hell" if first == "Hello" else first)


def test_a_word_is_sent_when_it_has_ended() -> None:
    answer_redactor = ReplyRedactor(redactor())
    texts = [answer_redactor.feed(ChatDelta(piece)).content for piece in ("Under", "stand", "ing is", " goodness", ". Bye")]
    assert texts == ["Unde", "", "rstanding is", " good", "ness. Bye"]
    assert answer_redactor.flush().content == ""


def test_at_most_a_thousand_characters_of_an_endless_word_are_held() -> None:
    answer_redactor = ReplyRedactor(redactor())
    sent_length = redacted_length = 0
    for _ in range(2000):
        sent_length += 50
        redacted_length += len(answer_redactor.feed(ChatDelta("aB3" * 16 + "xy")).content)
        assert sent_length - redacted_length <= MAX_HELD_CHARACTERS
    assert redacted_length + len(answer_redactor.flush().content) == sent_length


def test_the_answer_continues_after_a_long_secret() -> None:
    text = f"a {SECRETS['long web token']} b {SECRETS['long web token']}&c=d"
    assert redact_text(text) == redact_text(text, range(1, len(text))) == "a eyJh[…] b eyJh[…]&c=d"


def test_a_broken_private_key_redacts_little_of_the_text_after_it() -> None:
    text = "-----BEGIN PRIVATE KEY-----\n" + "Ab3+" * 16 + "\nand so on, to the end; it is not whole."
    assert redact_text(text).endswith("\nand so on, to the end; it is not whole.")


def test_texts_of_several_tool_calls_are_redacted_separately() -> None:
    half = len(SECRETS["github"]) // 2
    first, second = SECRETS["github"][:half], SECRETS["github"][half:]
    deltas = [ChatDelta(tool_calls=(ToolCallDelta(0, "a", "f", first), ToolCallDelta(1, "b", "g", '{"x":1}')))]
    deltas += [ChatDelta("Meanwhile."), ChatDelta(tool_calls=(ToolCallDelta(0, arguments=second),))]
    reply = collect_redacted(deltas)
    assert [call.arguments for call in reply.message.tool_calls] == ["ghp" + REDACTED, '{"x":1}']
    assert reply.message.content == "Meanwhile."


def test_numbers_are_unchanged() -> None:
    last = ChatDelta("Bye. ", finish_reason=FinishReason.LENGTH, usage=TokenUsage(1, 2))
    reply = collect_redacted([last])
    assert (reply.finish_reason, reply.usage) == (FinishReason.LENGTH, TokenUsage(1, 2))


def test_the_next_answer_knows_keys_that_are_loaded_later() -> None:
    keys: list[str] = []
    new_redactor = build_redactor(CONFIG, lambda: keys)
    assert collect_redacted([ChatDelta(PROVIDER_KEY)], ReplyRedactor(new_redactor)).message.content == PROVIDER_KEY
    keys.append(PROVIDER_KEY)
    assert PROVIDER_KEY not in collect_redacted([ChatDelta(PROVIDER_KEY)], ReplyRedactor(new_redactor)).message.content


def test_a_placeholder_for_a_key_is_not_redacted() -> None:
    new_redactor = redactor(["stand-in", "test", ""])
    assert (
        collect_redacted([ChatDelta("The offline stand-in is a test.")], ReplyRedactor(new_redactor)).message.content
        == "The offline stand-in is a test."
    )


@KINDS
def test_secrets_and_resource_names_are_redacted_in_errors(kind: str) -> None:
    message = f"bad request: {SECRETS[kind]} at https://internal.example/x in /var/task/app.py"
    error = redactor().redact_error(UpstreamRejected(message, param="model"))
    assert isinstance(error, UpstreamRejected)
    assert error.param == "model"
    assert not reveals(error.message, kind)
    assert "internal" not in error.message
    assert "/var" not in error.message


@pytest.mark.parametrize(
    "text",
    ["Words of prose that nobody would take for a secret. " * 200, "QUJD" * 2500, "sk-" * 3000, "eyJ." * 2500, "\\u0073" * 1500,
     "a:b=" * 2500, "://a:" * 2000, "-----BEGIN PRIVATE KEY-----\n" * 300, "\\" * 9000, "1234567890:AA" * 700, "A-" * 5000],
    ids=lambda text: text[:8],
)  # fmt: skip
@pytest.mark.parametrize("size", [4, 10**6], ids=["in pieces", "whole"])
def test_the_time_is_linear_in_the_length(text: str, size: int) -> None:
    def seconds(times: int) -> float:
        answer_redactor, long = ReplyRedactor(redactor()), text * times
        pieces = [ChatDelta(part) for part in _split(long, range(size, len(long), size))]
        start = time.process_time()
        for piece in pieces:
            answer_redactor.feed(piece)
        answer_redactor.flush()
        return time.process_time() - start

    best = min(seconds(1) for _ in range(3))
    assert best < 12e-6 * len(text)  # ten times the duration on an idle machine
    assert min(seconds(4) for _ in range(2)) < 10 * best + 0.02
