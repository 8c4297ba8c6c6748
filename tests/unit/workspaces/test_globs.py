"""Globs match whole paths, in a time that does not depend on the number of stars."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.workspaces.globs import Globs


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("**", ["a", "a/b", ".env", "a/b/c.md"], []),
        ("*", ["a", ".env"], ["a/b"]),
        ("*.md", ["README.md", ".md"], ["docs/a.md", "README.MD", "a.md.txt"]),
        ("docs/", ["docs/a", "docs/a/b.md"], ["docs", "doc/a", "a/docs/b", "Docs/a", "docsx/a"]),
        ("docs/*", ["docs/a"], ["docs/a/b", "docs"]),
        ("docs/**", ["docs/a", "docs/a/b"], ["docs", "docsx"]),
        ("**/*.md", ["a.md", "a/b.md", "a/b/c.md"], ["a.txt", "a.md/b"]),
        (
            "**/Dockerfile*",
            ["Dockerfile", "a/Dockerfile.dev", "a/b/Dockerfile"],
            ["a/MyDockerfile", "Dockerfile/x", "dockerfile"],
        ),
        ("**.py", ["a.py", "a/b.py"], ["a.pyc", "a.py/b"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/xb", "ab", "a/b/c"]),
        ("a**b", ["ab", "a/b", "axb", "a/x/b"], ["a/bc"]),
        ("a**/b", ["a/b", "ax/b", "a/x/b"], ["ab"]),
        ("**/", ["a", "a/b"], []),
        ("*/", ["a/b", "a/b/c"], ["a"]),
        ("src/*/test_*.py", ["src/a/test_b.py"], ["src/test_b.py", "src/a/b/test_c.py", "src/a/test_.pyc"]),
        ("pages/[id].tsx", ["pages/[id].tsx"], ["pages/i.tsx"]),
        ("a?c", ["a?c"], ["abc"]),
        ("{a,b}", ["{a,b}"], ["a"]),
        ("Größe/*", ["Größe/日"], ["Grösse/日"]),
        ("a\u3000b/", ["a\u3000b/c"], ["a b/c"]),
    ],
)
def test_a_pattern_matches_whole_paths(pattern: str, matching: list[str], others: list[str]) -> None:
    globs = Globs.parse([pattern])
    assert [path for path in matching if not globs.matches(path)] == []
    assert [path for path in others if globs.matches(path)] == []


@pytest.mark.parametrize("patterns", [["**", "!.github/", "!infra/"], ["!.github/", "**", "!infra/**", "src/"]])
def test_an_exclusion_wins_over_every_other_pattern(patterns: list[str]) -> None:
    globs = Globs.parse(patterns)
    assert globs.matches("src/main.py")
    assert globs.matches("infra")
    assert globs.matches("a/infra/b")
    assert not globs.matches("infra/main.tf")
    assert not globs.matches(".github/workflows/ci.yml")


def test_no_pattern_matches_nothing() -> None:
    assert not Globs.parse([]).matches("a")
    assert not Globs.parse([]).may_contain("")


def test_some_patterns_match_everything() -> None:
    for patterns in (["**"], ["a/", "**"]):
        assert Globs.parse(patterns).matches_everything
    for patterns in ([], ["*"], ["a/"], ["**", "!a/"], ["**/*"]):
        assert not Globs.parse(patterns).matches_everything


def test_globs_are_equal_if_their_patterns_are() -> None:
    assert Globs.parse(["a", "b/"]) == Globs.parse(("a", "b/"))
    assert len({Globs.parse(["a"]), Globs.parse(["a"]), Globs.parse(["b"])}) == 2
    assert repr(Globs.parse(["a", "!b"])) == "Globs.parse(['a', '!b'])"


@pytest.mark.parametrize(
    ("patterns", "containing", "others"),
    [
        (["**"], ["", "a", "a/b"], []),
        (["docs/"], ["", "docs", "docs/a"], ["doc", "src", "a/docs"]),
        (["docs/*.md"], ["", "docs"], ["docs/a"]),
        (["**/*.md"], ["", "a", "a/b"], []),
        (["README.md"], [""], ["README.md", "a"]),
        (["**", "!secret/"], ["", "a", "a/secret"], ["secret", "secret/a"]),
        (["**", "!*.md"], ["", "a"], []),
        (["src/*/a"], ["", "src", "src/x"], ["src/x/a", "x"]),
    ],
)
def test_a_folder_may_contain_matching_paths(patterns: list[str], containing: list[str], others: list[str]) -> None:
    globs = Globs.parse(patterns)
    assert [folder for folder in containing if not globs.may_contain(folder)] == []
    assert [folder for folder in others if globs.may_contain(folder)] == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "names nothing"),
        ("!", "names nothing"),
        ("!!a", 'one "!"'),
        ("/src", "write 'src'"),
        ("/", r"write '\*\*'"),
        ("a//b", "empty segment"),
        ("./a", "from the root"),
        ("a/../b", "from the root"),
        ("..", "from the root"),
        ("a\\b", 'by "/"'),
        ("a***", '"\\*\\*" for any folders'),
        ("a\0", "control"),
        ("a\nb", "control"),
        ("\u202ea", "control"),
        ("e\u0301", "write '\u00e9'"),
        ("x" * 513, "512 bytes"),
    ],
)
def test_a_bad_pattern_is_refused_with_a_message_that_says_what_to_write(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Globs.parse(["**", pattern])


def test_patterns_that_only_exclude_are_refused() -> None:
    with pytest.raises(ValueError, match="every pattern excludes"):
        Globs.parse(["!a", "!b/"])


def test_too_many_patterns_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 200"):
        Globs.parse(["a"] * 201)


def by_definition(pattern: str, path: str) -> bool:
    """Match by trying everything, as the definition of a pattern reads."""
    if not pattern:
        return not path
    if pattern.startswith("**/") and by_definition(pattern[3:], path):
        return True
    if pattern.startswith("**"):
        return any(rest_matches(pattern[2:], path[at:]) for at in range(len(path) + 1))
    if pattern.startswith("*"):
        end = path.find("/")
        return any(rest_matches(pattern[1:], path[at:]) for at in range((len(path) if end < 0 else end) + 1))
    return path[:1] == pattern[0] and (by_definition if pattern[0] == "/" else rest_matches)(pattern[1:], path[1:])


def rest_matches(pattern: str, path: str) -> bool:
    """Match the rest of a pattern within a segment, where ``**/`` is a ``**`` and a slash."""
    if pattern.startswith("**"):
        return any(rest_matches(pattern[2:], path[at:]) for at in range(len(path) + 1))
    return by_definition(pattern, path)


def is_valid(pattern: str) -> bool:
    try:
        Globs.parse([pattern])
    except ValueError:
        return False
    return True


segments = st.text("ab", min_size=1, max_size=3)
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
patterns = st.text("ab*/", min_size=1, max_size=8).filter(is_valid)


@given(st.lists(patterns, max_size=3), st.lists(patterns, max_size=2), paths)
def test_matching_equals_the_definition(included: list[str], excluded: list[str], path: str) -> None:
    def matches(pattern: str) -> bool:
        return by_definition(f"{pattern}**" if pattern.endswith("/") else pattern, path)

    if not included:
        excluded = []
    globs = Globs.parse([*included, *(f"!{pattern}" for pattern in excluded)])
    expected = any(map(matches, included)) and not any(map(matches, excluded))
    assert globs.matches(path) == expected
    assert globs.matches(path) == expected, "also from the cached steps"
    if expected:
        parts = path.split("/")
        assert all(globs.may_contain("/".join(parts[:depth])) for depth in range(len(parts)))


def test_hostile_patterns_match_in_linear_time() -> None:
    started = time.thread_time()
    globs = Globs.parse(["**a*a*a*a*a**a*a*a*a*b", "*".join("a" * 250), "!" + "**a" * 160] + ["**/a*/" * 80] * 100)
    for number in range(200):
        globs.matches("a" * 400 + "/" + str(number))
        globs.matches(("a" * 15 + "/") * 31 + str(number))
    assert time.thread_time() - started < 10
