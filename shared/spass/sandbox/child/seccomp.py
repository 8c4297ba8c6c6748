"""A seccomp filter: a program of the kernel's classic packet filter that judges every system call of this process."""

from __future__ import annotations

import errno

from spass.sandbox.child.kernel import Words, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

    from spass.sandbox.child.system_calls import Rule

_AUDIT_NUMBERS: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's numbers of the machines."""
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER: Final = 1
_ALL_THREADS: Final = 1

_X32_CALLS: Final = 0x40000000
"""On x86-64, 32-bit programs in 64-bit mode make the calls with this number and above."""

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
"""End the process with SIGSYS."""
REFUSE: Final = 0x00050000
"""Do nothing and return the error in the low 16 bits."""

LOAD: Final = 0x20
"""Load a word of struct seccomp_data: the number, the machine, a pointer, six arguments of 64 bits (low word first)."""
AND: Final = 0x54
JUMP_IF_EQUAL: Final = 0x15
JUMP_IF_AT_LEAST: Final = 0x35
RETURN: Final = 0x06
_NUMBER: Final = 0
_MACHINE: Final = 4
_ARGUMENTS: Final = 16

OTHER_MACHINES: Final = "other machines"
X32: Final = "x32"
GUARDS: Final = (OTHER_MACHINES, X32)
"""The filters that end the process for calls whose numbers mean other system calls than the rules do."""


class Instruction:
    """An instruction of the filter. A jump skips ``if_true`` or ``if_false`` instructions."""

    __slots__ = ("code", "if_false", "if_true", "value")

    def __init__(self, code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> None:
        self.code = code
        self.value = value
        self.if_true = if_true
        self.if_false = if_false

    def word(self) -> int:
        """Return the kernel's form."""
        return self.code | self.if_true << 16 | self.if_false << 24 | self.value << 32


def assemble(rules: Sequence[Rule], machine: str, guards: Sequence[str] = GUARDS) -> Sequence[Instruction]:
    """Return the filter: a call of another machine ends the process, and a call without a rule is refused."""
    program: list[Instruction] = []
    if OTHER_MACHINES in guards:
        program += [
            Instruction(LOAD, _MACHINE),
            Instruction(JUMP_IF_EQUAL, _AUDIT_NUMBERS[machine], if_true=1),
            Instruction(RETURN, KILL),
        ]
    program += [Instruction(LOAD, _NUMBER)]
    if X32 in guards and machine == "x86_64":
        program += [Instruction(JUMP_IF_AT_LEAST, _X32_CALLS, if_false=1), Instruction(RETURN, KILL)]
    for rule in rules:
        number = rule.x86_64 if machine == "x86_64" else rule.aarch64
        if number is not None:
            program += _judge(number, rule)
    return [*program, Instruction(RETURN, REFUSE | errno.EPERM)]


def install(program: Sequence[Instruction], machine: str) -> None:
    """Apply the filter to this process, for good."""
    code = Words([instruction.word() for instruction in program])
    header = Words([len(program), code.address])  # struct sock_fprog: a length of 16 bits, then a pointer
    system_call(_SECCOMP[machine], _SET_MODE_FILTER, _ALL_THREADS, header.address)


def _judge(number: int, rule: Rule) -> Sequence[Instruction]:
    """Return the instructions of one rule. They leave the number of the call loaded if the rule does not apply."""
    result = Instruction(RETURN, ALLOW if rule.error is None else REFUSE | rule.error)
    if not rule.checks:
        return (Instruction(JUMP_IF_EQUAL, number, if_false=1), result)
    program = [result, Instruction(LOAD, _NUMBER)]
    # From the last comparison to the first, because each jumps behind those that follow it.
    for check in reversed(rule.checks):
        for word, offset in ((32, 4), (0, 0)):
            mask = check.mask >> word & 0xFFFFFFFF
            if mask:
                skip = len(program) - 1
                jump = Instruction(JUMP_IF_EQUAL, check.value >> word & 0xFFFFFFFF)
                jump.if_true, jump.if_false = (0, skip) if check.equal else (skip, 0)
                program[:0] = [Instruction(LOAD, _ARGUMENTS + 8 * check.argument + offset), Instruction(AND, mask), jump]
    return (Instruction(JUMP_IF_EQUAL, number, if_false=len(program)), *program)
