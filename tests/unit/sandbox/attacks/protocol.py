"""Attacks on the pipes between the child and its parent."""

from typing import Final

from tests.unit.sandbox.attacks.attack import Attack

_FORGED = """
import json
report = {"number": 0, "output": "GAINED a report", "error": None, "truncated": 0, "final": "GAINED an answer", "exceeded": None}
effect = {"cell": 0, "hash": "", "requests": [{"tool": "x", "arguments": {}}]}
lines = [json.dumps({"cell": report}), json.dumps({"effect": effect})]
"""

PROTOCOL: Final = (
    Attack(
        "forged reports on every descriptor",
        _FORGED
        + """
for descriptor in range(64):
    for line in lines:
        for text in (line, f"{'0' * 32} {line}"):
            try:
                LIBC.write(descriptor, f"\\n{text}\\n".encode(), len(text) + 2)
            except OSError:
                pass
""",
        "never",
    ),
    Attack(
        "forged reports in the output",
        _FORGED
        + """
for line in lines:
    line = line.replace("GAINED", "FORGED")
    print(f"\\n{'0' * 32} {line}")
    sys.__stdout__.write(f"\\n{line}\\n")
    os.write(1, f"\\n{line}\\n".encode())
    os.write(2, f"\\n{line}\\n".encode())
""",
        "never",
    ),
    Attack(
        "the pipe of the parent, read ahead",
        """
import select
for descriptor in range(64):
    try:
        if select.select([descriptor], [], [], 0)[0]:
            print(os.read(descriptor, 4096))
    except (OSError, ValueError):
        pass
""",
        "never",
    ),
    Attack("closed descriptors", "os.closerange(0, 1024)", "never", ends=True),
    Attack(
        "other descriptors in their place",
        "for at in range(64):\n    try:\n        os.dup2(0, at)\n    except OSError:\n        pass",
        "never",
        ends=True,
    ),
    Attack("an end without a report", "os._exit(0)", "never", ends=True),
    Attack("an end without a report by number", 'call("exit_group", 0)', "never", ends=True),
)
