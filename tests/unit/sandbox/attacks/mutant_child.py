"""The child with another policy: ``python mutant_child.py <folder of the child> <mutation as JSON>``.

It runs without packages and without the rest of this repository, as the child itself does.
"""

import json
import resource
import sys
from types import ModuleType
from typing import Any


def main(folder: str, mutation: dict[str, Any]) -> None:
    """Run the child in ``folder`` after changes to its policy.

    The keys of ``mutation``: ``open_filter`` (true), ``allow`` (numbers of system calls), ``check`` (the name of a rule and the
    position of a check to leave out), ``guard``, ``steps``, ``limit``, ``rights`` and ``scratch_right`` (names to leave out),
    ``verify`` (true), ``landlock`` (the version that the kernel seems to offer).
    """
    for name in ("spass", "spass.sandbox", "spass.sandbox.child"):
        package = ModuleType(name)
        package.__path__ = [folder] if name == "spass.sandbox.child" else []
        sys.modules[name] = package

    from spass.sandbox.child import landlock
    from spass.sandbox.child.confinement import POLICY
    from spass.sandbox.child.program import main as run
    from spass.sandbox.child.system_calls import Rule

    if "landlock" in mutation:
        vars(landlock)["version"] = lambda: mutation["landlock"]
    if mutation.get("open_filter"):
        POLICY.rules = [Rule("any", number, number) for number in range(1024)]
    POLICY.rules = [*(Rule("allowed", number, number) for number in mutation.get("allow", ())), *POLICY.rules]
    if "check" in mutation:
        name, at = mutation["check"]
        for rule in POLICY.rules:
            if rule.name == name:
                rule.checks = rule.checks[:at] + rule.checks[at + 1 :]
    if not mutation.get("verify"):
        POLICY.verifications = ()
    POLICY.guards = [guard for guard in POLICY.guards if guard != mutation.get("guard")]
    POLICY.steps = [step for step in POLICY.steps if step.__name__ not in mutation.get("steps", ())]
    POLICY.rights = [right for right in POLICY.rights if right.name not in mutation.get("rights", ())]
    POLICY.scratch_rights = [right for right in POLICY.scratch_rights if right.name != mutation.get("scratch_right")]
    limits = dict(POLICY.limits)
    if "limit" in mutation:
        del limits[getattr(resource, mutation["limit"])]
    POLICY.limits = limits
    run()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
