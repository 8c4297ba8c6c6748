"""A path has one form: every other text is refused, with a message that says what to write."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InvalidPath
from spass.workspaces.paths import MAX_PATH_BYTES, MAX_SEGMENTS, check_together, parse_folder, parse_path
from tests.hostile_paths import CLASHES, HOSTILE, HOSTILE_PATHS, UNUSUAL

texts = st.text(st.sampled_from("ab./%2eE5c\\:C \u0301é．\u202e\0git~") | st.characters(), max_size=40)


def refusal(path: str) -> InvalidPath | None:
    try:
        parse_path(path)
    except InvalidPath as error:
        return error
    return None


def test_there_are_500_hostile_paths() -> None:
    assert len(HOSTILE_PATHS) >= 500


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_paths_are_refused(kind: str) -> None:
    assert [path for path in HOSTILE[kind] if refusal(path) is None] == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_message_holds_a_dangerous_character(kind: str) -> None:
    errors = [refusal(path) for path in HOSTILE[kind]]
    messages = [error.message for error in errors if error]
    assert len(messages) == len(errors)
    assert [message for message in messages if not message.isprintable() or len(message) > 800] == []
    assert [message for message in messages if not set(message).isdisjoint("\u034f\u115f\u1160\u3164\uffa0")] == []


@pytest.mark.parametrize("path", UNUSUAL)
def test_unusual_paths_are_valid(path: str) -> None:
    assert parse_path(path) == path
    assert parse_folder(path) == path


def test_the_error_names_the_field() -> None:
    with pytest.raises(InvalidPath) as caught:
        parse_path("../x", "files.3")
    assert caught.value.param == "files.3"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/src/main.py", "relative to the root"),
        ("src\\main.py", 'Separate folders by "/"'),
        ("e\u0301.md", "Write '\u00e9.md'"),
        ("a/%2e%2e/b", "may read it as 'a/../b'"),
        ("x" * 513, "more than 512 bytes"),
        ("a/" * 32 + "a", "more than 32 segments"),
        ("src/", "none at the end"),
        ("a\0b", r"'a\x00b'"),
    ],
)
def test_the_message_says_what_to_write(path: str, words: str) -> None:
    error = refusal(path)
    assert error is not None
    assert words in error.message


def test_a_folder_may_end_with_a_slash_and_the_root_is_empty() -> None:
    assert [parse_folder(path) for path in ("", "src", "src/", "src/lib/")] == ["", "src", "src", "src/lib"]


@pytest.mark.parametrize("path", ["/", ".", "./", "..", "//", "src//", "/src", "../", "a/../", ".git/", "x" * 513])
def test_a_folder_follows_the_rules_of_paths(path: str) -> None:
    with pytest.raises(InvalidPath):
        parse_folder(path)


@pytest.mark.parametrize("paths", CLASHES)
def test_paths_that_clash_cannot_be_in_one_tree(paths: tuple[str, str]) -> None:
    for pair in (paths, paths[::-1]):
        with pytest.raises(InvalidPath):
            check_together([*pair, "other/file.md"])


def test_equal_names_in_different_folders_do_not_clash() -> None:
    check_together(["a/b", "b/a", "a/c/d", "ab", "a-b/c", "B/b"])


@given(texts)
def test_a_valid_path_keeps_every_rule(path: str) -> None:
    if refusal(path):
        return
    assert unicodedata.normalize("NFC", path) == path
    assert 0 < len(path.encode()) <= MAX_PATH_BYTES
    segments = path.split("/")
    assert len(segments) <= MAX_SEGMENTS
    for segment in segments:
        assert segment.strip() == segment
        assert segment not in ("", ".", "..")
        assert segment.lower() != ".git"
        assert not segment.endswith(".")
    assert not {unicodedata.category(character) for character in path} & {"Cc", "Cf", "Cs"}
    assert "\\" not in path


@given(st.lists(st.text("abAB/", min_size=1, max_size=6), max_size=8))
def test_paths_of_one_tree_are_checked_as_by_comparing_all_pairs(paths: list[str]) -> None:
    paths = [path for path in paths if refusal(path) is None]
    folded = [path.lower() for path in paths]
    clash = any(
        one == other or other.startswith(f"{one}/")
        for at, one in enumerate(folded)
        for number, other in enumerate(folded)
        if at != number
    )
    try:
        check_together(paths)
    except InvalidPath:
        assert clash
    else:
        assert not clash


def test_paths_are_checked_quickly() -> None:
    slow = ["%25" * 170, "%" * 512, "．" * 170, "ﷺ" * 170, "a/" * 31 + "%2e" * 100, "-/" * 31 + "." * 400, "0." * 256, "%u" * 256]
    started = time.thread_time()
    for path in slow * 10:
        refusal(path)
    assert time.thread_time() - started < 10
