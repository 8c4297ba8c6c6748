"""The kernel's machine for filters of system calls, so that a test can judge the filter of another machine."""

from collections.abc import Sequence

from spass.sandbox.child.seccomp import AND, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, LOAD, RETURN, Instruction

_LOW_WORD = 0xFFFFFFFF


def judge(program: Sequence[Instruction], audit: int, number: int, arguments: Sequence[int] = ()) -> int:
    """Return what the filter says of a system call: its action, with the error in the low 16 bits."""
    words = [number & _LOW_WORD, audit, 0, 0]
    for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        words += [argument & _LOW_WORD, argument >> 32 & _LOW_WORD]
    loaded, at = 0, 0
    while True:
        step = program[at]
        at += 1
        match step.code:
            case code if code == LOAD:
                loaded = words[step.value // 4]
            case code if code == AND:
                loaded &= step.value
            case code if code == JUMP_IF_EQUAL:
                at += step.if_true if loaded == step.value else step.if_false
            case code if code == JUMP_IF_AT_LEAST:
                at += step.if_true if loaded >= step.value else step.if_false
            case code if code == RETURN:
                return step.value
            case code:
                raise AssertionError(f"the filter has an instruction that this machine does not know: {code}")
