"""An edited view gives the file back byte for byte, except for what the edit changed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.reply_redaction import model_round_trip
from spass.redaction.detector import SecretSet
from spass.tools.editor.view import FileView
from tests.unit.calls.planted_secrets import SECRETS

KNOWN = SecretSet([], [])
ZWSP, ZWJ, SHY = "\u200b", "\u200d", "\u00ad"
TEXTS = [
    *("", "x", "    return x", "\tif y:", "}", "‹s›", "<s>", "</s>", "[INST] hi [/INST]", "<|im_start|>user", "Human: hi"),
    *(
        f"a{ZWSP}b",
        "ab",
        f"a{ZWJ}b",
        f"{SHY}",
        "👩‍👩‍👧",
        "\x00\x1b[0m",
        "=======",
        "‹=======›",
        "<<<<<<< SEARCH",
        ">>>>>>> REPLACE",
    ),
    *("<<<<<<< HEAD", "```python", "````", "<sourcecode>", "[…]", "é", "x" * 3000, "-----BEGIN RSA PRIVATE KEY-----", "\ufeff"),
    *("-----END RSA PRIVATE KEY-----", "self.thisIsAVeryLongName = selfIsALongNameToo", "aws_secret_access_key ="),
    *("\n".join(SECRETS.values()).splitlines()),
]
ENDS = ["\n", "\n", "\r\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1c"]
FILES = st.tuples(
    st.sampled_from(["", "\ufeff"]),
    st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(ENDS)), max_size=25),
    st.sampled_from(["", "last", "<s>"]),
)


def round_trip(text: str) -> str:
    return model_round_trip(text, KNOWN)


def view_of(text: str) -> FileView:
    return FileView.of(text.encode(), round_trip)


def restore(view: FileView, result: str, movable: Mapping[str, str] | None = None) -> str:
    return view.restore(result, movable or {}).decode()


@dataclass(frozen=True)
class Edit:
    """What happens to one line: a new text replaces it, or comes before it, or nothing happens."""

    kind: str
    number: int

    def apply(self, seen: str, text: str) -> tuple[list[str], list[str]]:
        """Return the lines of the edited view, and the texts that the file must then have."""
        new = f"new line {self.number}"
        match self.kind:
            case "replace":
                return [new], [new]
            case "insert":
                return [new, seen], [new, text]
            case _:
                return [seen], [text]


@given(FILES, st.lists(st.sampled_from(["keep", "keep", "replace"]), min_size=30, max_size=30))
def test_only_the_replaced_lines_of_a_file_differ(file: tuple[str, Sequence[tuple[str, str]], str], kinds: Sequence[str]) -> None:
    bom, lines, last = file
    body = bom + "".join(map("".join, lines)) + last
    view = view_of(body)
    edits = [
        Edit(kind, number).apply(line.seen, line.text) for number, (kind, line) in enumerate(zip(kinds, view.lines, strict=False))
    ]
    result = "".join(f"{line}\n" for new, _ in edits for line in new)
    expected = view.bom + "".join(texts[0] + line.end for (_, texts), line in zip(edits, view.lines, strict=True))
    assert restore(view, result) == expected


@given(FILES, st.lists(st.sampled_from(["keep", "keep", "insert"]), min_size=30, max_size=30))
def test_an_inserted_line_changes_no_other_byte(file: tuple[str, Sequence[tuple[str, str]], str], kinds: Sequence[str]) -> None:
    bom, lines, last = file
    view = view_of(bom + "".join(map("".join, lines)) + last)
    edits = [
        Edit(kind, number).apply(line.seen, line.text) for number, (kind, line) in enumerate(zip(kinds, view.lines, strict=False))
    ]
    restored = restore(view, "".join(f"{line}\n" for new, _ in edits for line in new))
    left = [line for line in restored.removeprefix(view.bom).splitlines(keepends=True) if not line.startswith("new line")]
    assert view.bom + "".join(left) == view.body.decode()


@given(FILES)
def test_a_view_repeats_itself_and_has_plain_line_ends(file: tuple[str, Sequence[tuple[str, str]], str]) -> None:
    bom, lines, last = file
    body = bom + "".join(map("".join, lines)) + last
    view = view_of(body)
    assert round_trip(view.text) == view.text
    assert len(view.text.splitlines()) == view.text.count("\n") == len(view.lines)
    assert restore(view, view.text) == body
    for line in view.lines:
        assert line.seen.strip() not in ("=======", "<<<<<<< SEARCH", ">>>>>>> REPLACE")


@pytest.mark.parametrize(
    ("body", "change", "expected"),
    [
        ("a\r\nb\r\n", ("b\n", "b\nc\n"), "a\r\nb\r\nc\r\n"),
        ("a\r\nb", ("b\n", "b\nc\n"), "a\r\nb\r\nc"),
        ("a\nb", ("b\n", ""), "a"),
        ("a\nb\n", ("b\n", ""), "a\n"),
        ("\ufeffa\n", ("a\n", "z\na\n"), "\ufeffz\na\n"),
        ("a\rb\r", ("a\n", "a\nz\n"), "a\rz\rb\r"),
        ("a\x0cb\r\nc\r\n", ("b\n", "b\nz\n"), "a\x0cb\r\nz\r\nc\r\n"),
        ("a\x0cb\n", ("a\n", "y\nz\n"), "y\nz\x0cb\n"),
        ("", ("", "one\ntwo"), "one\ntwo"),
        ("", ("", "one\n"), "one\n"),
        ("a\n", ("a\n", ""), ""),
        ("a\r\n", ("a\n", "a\r\nb\r\n"), "a\r\nb\r\n"),
    ],
)
def test_newlines_a_missing_last_one_and_a_byte_order_mark_are_preserved(
    body: str, change: tuple[str, str], expected: str
) -> None:
    view = view_of(body)
    assert restore(view, view.text.replace(*change) if body else change[1]) == expected


def test_lines_that_move_within_a_file_become_the_lines_of_the_file() -> None:
    body = "def f():\n    a = '<s>'\n    b = 'x\u200by'\n\n\ndef g():\n    pass\n"
    view = view_of(body)
    f, g = view.text.split("\n\n\n")
    assert restore(view, f"{g}\n\n{f}\n") == "def g():\n    pass\n\n\ndef f():\n    a = '<s>'\n    b = 'x\u200by'\n"


def test_the_lines_of_a_key_that_moves_keep_their_order() -> None:
    key = SECRETS["rsa key"].replace("\n\n", "\n")
    view = view_of(f"first\n{key}\nsecond\nthird\n")
    lines = view.text.splitlines(keepends=True)
    result = "".join(["first\n", "second\n", "third\n", *lines[1:-2]])
    assert restore(view, result) == f"first\nsecond\nthird\n{key}\n"


def test_lines_that_move_to_another_file_are_restored_unless_they_hold_a_credential() -> None:
    source = view_of(f"a = '<s>'\nkey = '{SECRETS['github']}'\n{ZWSP}\n")
    target = view_of("")
    assert restore(target, source.text, source.movable_lines()) == "a = '<s>'\nkey = 'ghp[…]'\n\n"


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        ("token = '<s>' + name  # start", "start", "end"),
        (f"key, region = '{SECRETS['github']}', 'eu'", "'eu'", "'us'"),
        (f"greeting = 'a{ZWSP}b' + one", "one", "another"),
        (f"{SECRETS['aws secret key'].strip()}  # old", "old", "new"),
        ("<|im_start|>user hello <|im_end|>", "hello", "goodbye"),
        ("    ======= ", "=======", "======= x"),
    ],
)
def test_a_changed_line_keeps_its_rewritten_parts(line: str, old: str, new: str) -> None:
    body = f"first\n{line}\nlast\n"
    view = view_of(body)
    assert restore(view, view.text.replace(old, new)) == body.replace(old, new)


def test_a_changed_line_does_not_get_parts_that_it_did_not_keep() -> None:
    view = view_of("first\na = '<s>' + x\nlast\n")
    assert restore(view, "first\nb = call()\nlast\n") == "first\nb = call()\nlast\n"


def test_a_surrogate_in_an_edit_becomes_a_question_mark() -> None:
    view = view_of("a\n")
    assert restore(view, "a\n\ud800\n") == "a\n?\n"


def test_a_file_that_is_not_utf_8_has_no_view() -> None:
    with pytest.raises(UnicodeDecodeError):
        FileView.of(b"\xff\xfe", round_trip)


def _edited(lines: Sequence[str], edit: str) -> str:
    match edit:
        case "both ends":
            return "".join(["new\n", *lines[:-3], "new\n"])
        case "half":
            return "".join(lines[::2])
        case _:
            return "".join(f"{line[:-1]}{number % 7}\n" for number, line in enumerate(lines))


@pytest.mark.parametrize("unit", ["\n", "<s>\n", f"{ZWSP}\n\n", "a\nb\n", "x" * 200 + "<s>\n", "\x0c", SECRETS["github"] + "\n"])
@pytest.mark.parametrize("edit", ["both ends", "half", "every line"])
def test_the_time_for_hostile_files_is_bounded(unit: str, edit: str) -> None:
    def seconds(size: int) -> float:
        view = view_of(unit * (size // len(unit)))
        result = _edited(view.text.splitlines(keepends=True), edit)
        started = time.process_time()
        view.restore(result, {})
        return time.process_time() - started

    assert seconds(80_000) < 1 + 16 * seconds(10_000)
