"""What a rehearsal does not show about AWS. ``make rehearse`` prints this list.

Each entry is still true. ``proof`` is what fails when it is not: a test, or a step of the rehearsal. ``held_by`` is what holds
the same thing without the emulator, or says that only a live account does.
"""

from dataclasses import dataclass
from typing import Final

_CORRECTIONS: Final = "tests/unit/infra/rehearsal/test_corrections.py"
_EMULATED: Final = "tests/unit/infra/rehearsal/test_emulated.py"
_LIVE: Final = "a live account alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between the emulator and AWS.

    ``correction`` is the function of `infra.rehearsal.corrections` that removes it, as far as a deployment of the gateway needs.
    """

    name: str
    reason: str
    proof: str
    held_by: str
    correction: str | None = None


DIFFERENCES: Final = (
    Difference(
        name="network ACLs",
        reason="The emulator does not know their two types, and no rule of a network has an effect in it.",
        proof=f"{_CORRECTIONS}::test_the_emulator_alone_does_not_know_a_type",
        held_by="tests/infra/test_sandbox.py",
        correction="add_network_acls",
    ),
    Difference(
        name="saved queries",
        reason="The emulator does not know their type, so the rehearsal runs none of them.",
        proof=f"{_CORRECTIONS}::test_the_emulator_alone_does_not_know_a_type",
        held_by="tests/infra/test_alarms.py",
        correction="add_query_definitions",
    ),
    Difference(
        name="updates of nested stacks",
        reason="The emulator forgets the attributes of what has not changed, so that the update fails.",
        proof=f"{_CORRECTIONS}::test_the_emulator_alone_forgets_the_attributes_of_a_nested_stack",
        held_by=_LIVE,
        correction="keep_attributes_in_nested_stacks",
    ),
    Difference(
        name="import of the API",
        reason="The emulator keeps the method, the type and the address of an integration. The rehearsal makes the rest.",
        proof=f"{_CORRECTIONS}::test_the_emulator_alone_imports_too_little_of_a_body",
        held_by="tests/infra/test_api.py",
        correction="import_whole_bodies",
    ),
    Difference(
        name="templates of mocks",
        reason="The emulator does not render them. The rehearsal fills in the request's id and nothing else.",
        proof=f"{_CORRECTIONS}::test_the_emulator_alone_sends_the_template_of_a_mock",
        held_by="tests/unit/infra/test_openapi_body.py",
        correction="answer_mocks_with_request_ids",
    ),
    Difference(
        name="changes of the API",
        reason="The emulator makes another API of a changed body. The rehearsal overwrites the API there is.",
        proof=f"{_CORRECTIONS}::test_the_emulator_alone_makes_another_api_of_a_changed_body",
        held_by=_LIVE,
        correction="overwrite_bodies_in_place",
    ),
)
