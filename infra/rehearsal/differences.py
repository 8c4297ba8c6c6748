"""The list of differences between the emulator and AWS, which ``make rehearse`` prints.

Each entry is still true. ``proof`` names the test or the step of the rehearsal that fails when it is not. ``held_by`` names the
test that holds the same thing without the emulator, or says that only a live account does.
"""

from dataclasses import dataclass
from typing import Final

_CORRECTIONS: Final = "tests/unit/infra/rehearsal/test_corrections.py"
_EMULATED: Final = "tests/unit/infra/rehearsal/test_emulated.py"
_ASSEMBLIES: Final = "tests/unit/infra/rehearsal/test_assemblies.py"
_FUNCTIONS: Final = "tests/unit/infra/rehearsal/test_functions.py"
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
    Difference(
        name="streams",
        reason="The emulator sends an answer when it is whole. The rehearsal sends each piece as the function writes it.",
        proof=f"{_EMULATED}::test_the_emulator_alone_does_not_stream",
        held_by=_LIVE,
    ),
    Difference(
        name="web adapter",
        reason="Its layer is another account's, so the rehearsal forwards requests to the servers by itself.",
        proof=f"{_EMULATED}::test_the_emulator_alone_does_not_have_the_web_adapter",
        held_by=_LIVE,
    ),
    Difference(
        name="permissions",
        reason="No policy is enforced: each call of a function succeeds, whatever its role allows.",
        proof="differences",
        held_by="tests/infra/test_permissions.py",
    ),
    Difference(
        name="deployments of the API",
        reason="A stage serves what the API is now, and not what it was when it was deployed.",
        proof="differences",
        held_by=_LIVE,
    ),
    Difference(
        name="processor",
        reason="Compiled packages are those of this machine's processor, of the same pinned versions.",
        proof=f"{_ASSEMBLIES}::test_a_copy_has_the_packages_of_this_machine",
        held_by="tests/infra/test_bundles.py",
    ),
    Difference(
        name="operator's files",
        reason="gateway.yaml and the agents are the rehearsal's, because it knows no token and no model of yours.",
        proof=f"{_ASSEMBLIES}::test_a_copy_has_the_files_of_the_rehearsal",
        held_by="tests/unit/local/test_validate.py",
    ),
    Difference(
        name="idle functions",
        reason="They go on between invocations, where Lambda freezes them.",
        proof=f"{_FUNCTIONS}::test_an_idle_instance_is_not_frozen",
        held_by=_LIVE,
    ),
    Difference(
        name="memory of functions",
        reason="It is not limited, and each has all cores.",
        proof=f"{_FUNCTIONS}::test_a_function_gets_more_memory_than_it_has",
        held_by=_LIVE,
    ),
    Difference(
        name="mount namespaces",
        reason="Where the user may not make them, a function's folders are under a prefix, and it can write into them.",
        proof=f"{_FUNCTIONS}::test_a_function_under_a_prefix_can_write_into_its_code",
        held_by=_LIVE,
    ),
)
