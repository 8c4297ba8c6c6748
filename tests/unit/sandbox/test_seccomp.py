"""The filter of system calls, judged on both machines by a machine of the tests' own."""

import errno
import os
from collections.abc import Sequence

import pytest

from spass.sandbox.child.seccomp import ALLOW, KILL, REFUSE, assemble
from spass.sandbox.child.system_calls import RULES
from tests.unit.sandbox.filter_machine import judge
from tests.unit.sandbox.system_call_numbers import FORBIDDEN

X86_64, AARCH64, I386, ARM = 0xC000003E, 0xC00000B7, 0x40000003, 0x40000028
AUDIT = {"x86_64": X86_64, "aarch64": AARCH64}
HIGHEST_CALL = 1024
EPERM = REFUSE | errno.EPERM

O_TRUNC, O_PATH, O_TMPFILE, O_ASYNC = os.O_TRUNC, 0o10000000, 0o20000000, 0o20000
OTHER_WORD = 1 << 32


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_system_call_is_refused_whatever_its_arguments(machine: str, name: str) -> None:
    number = FORBIDDEN[name][0 if machine == "x86_64" else 1]
    program = assemble(RULES, machine)
    for arguments in ((), (1, 1, 1), (2**64 - 1,) * 6):
        assert number is None or judge(program, AUDIT[machine], number, arguments) == EPERM


@pytest.mark.parametrize("machine", AUDIT)
def test_only_calls_with_a_rule_are_allowed(machine: str) -> None:
    program = assemble(RULES, machine)
    known = {rule.x86_64 if machine == "x86_64" else rule.aarch64 for rule in RULES}
    refused = {number for number in range(HIGHEST_CALL) if judge(program, AUDIT[machine], number) == EPERM}
    assert refused >= {*range(HIGHEST_CALL)} - known
    always = {rule.name for rule in RULES if not rule.checks and rule.error is None}
    numbers = {rule.x86_64 if machine == "x86_64" else rule.aarch64 for rule in RULES if rule.name in always} - {None}
    assert {number for number in numbers if number is not None and judge(program, AUDIT[machine], number) != ALLOW} == set()


@pytest.mark.parametrize(
    ("machine", "audit"), [("x86_64", I386), ("x86_64", AARCH64), ("aarch64", ARM), ("aarch64", X86_64), ("aarch64", 0)]
)
def test_a_call_of_another_machine_ends_the_process(machine: str, audit: int) -> None:
    program = assemble(RULES, machine)
    assert {judge(program, audit, number) for number in range(HIGHEST_CALL)} == {KILL}


@pytest.mark.parametrize("number", [0x40000000, 0x40000001, 0x40000029, 0x40000200, 0xFFFFFFFF])
def test_a_call_of_x32_ends_the_process(number: int) -> None:
    assert judge(assemble(RULES, "x86_64"), X86_64, number) == KILL


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize(
    ("name", "arguments", "is_allowed"),
    [
        ("openat", (0, 0, os.O_RDONLY), True),
        ("openat", (0, 0, os.O_RDONLY | os.O_CLOEXEC), True),
        ("openat", (0, 0, os.O_WRONLY | os.O_CREAT | O_TRUNC), True),
        ("openat", (0, 0, os.O_RDWR | O_TRUNC), True),
        ("openat", (0, 0, os.O_RDONLY | O_TRUNC), False),
        ("openat", (0, 0, os.O_RDONLY | O_TRUNC | OTHER_WORD), False),
        ("openat", (0, 0, 3), False),  # neither to read nor to write
        ("openat", (0, 0, 3 | O_TRUNC), False),
        ("openat", (0, 0, 3 | os.O_CREAT | OTHER_WORD), False),
        ("openat", (0, 0, O_PATH), False),
        ("openat", (0, 0, O_PATH | os.O_RDWR), False),
        ("openat", (0, 0, O_TMPFILE | os.O_RDWR), False),
        ("openat", (0, 0, O_ASYNC | os.O_RDWR), False),
        ("fcntl", (0, 3), True),
        ("fcntl", (0, 1030), True),
        ("fcntl", (0, 4), False),  # F_SETFL
        ("fcntl", (0, 8), False),  # F_SETOWN
        ("fcntl", (0, 8 | OTHER_WORD), False),
        ("fcntl", (0, 10), False),  # F_SETSIG
        ("fcntl", (0, 15), False),  # F_SETOWN_EX
        ("fcntl", (0, 1026), False),  # F_NOTIFY
        ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5401 | OTHER_WORD), True),
        ("ioctl", (0, 0x5412), False),  # TIOCSTI
        ("ioctl", (0, 0x8901), False),  # FIOSETOWN
        ("ioctl", (0, 0x5452), False),  # FIOASYNC
        ("prlimit64", (0, 7, 0, 1), True),
        ("prlimit64", (0, 7, 1, 0), False),
        ("prlimit64", (0, 7, OTHER_WORD, 0), False),
        ("prlimit64", (1, 7, 0, 1), False),
        ("clock_gettime", (0,), True),
        ("clock_gettime", (7,), True),
        ("clock_gettime", (0xFFFFFFF6,), False),
        ("sched_getaffinity", (0,), True),
        ("sched_getaffinity", (1,), False),
        ("futex", (0, 0x80), True),
        ("futex", (0, 0x189), True),
        ("futex", (0, 3), False),  # FUTEX_REQUEUE
        ("futex", (0, 6), False),  # FUTEX_LOCK_PI
    ],
)
def test_the_arguments_of_a_call_are_checked(machine: str, name: str, arguments: Sequence[int], is_allowed: bool) -> None:
    (number,) = {rule.x86_64 if machine == "x86_64" else rule.aarch64 for rule in RULES if rule.name == name}
    assert number is not None
    assert judge(assemble(RULES, machine), AUDIT[machine], number, arguments) == (ALLOW if is_allowed else EPERM)


@pytest.mark.parametrize("machine", AUDIT)
def test_calls_that_landlock_does_not_judge_pretend_to_succeed(machine: str) -> None:
    program = assemble(RULES, machine)
    for rule in RULES:
        number = rule.x86_64 if machine == "x86_64" else rule.aarch64
        if rule.name.startswith(("fchmod", "utimens")) and number is not None:
            assert judge(program, AUDIT[machine], number, (1, 1, 1)) == REFUSE
