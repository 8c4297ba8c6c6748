"""The commands of the runbooks exist in the API of AWS, with the parameters that they need."""

import re
import shlex
from pathlib import Path
from typing import Final

import botocore.session
import pytest

PAGE: Final = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
SERVICES: Final = botocore.session.Session()
RUNBOOKS: Final = re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |^## |\Z)", PAGE.split("## Runbooks\n", 1)[1].split("\n## ", 1)[0])


@pytest.mark.parametrize(("name", "text"), RUNBOOKS, ids=[name for name, _ in RUNBOOKS])
def test_a_runbook_has_one_command_that_aws_accepts(name: str, text: str) -> None:
    (command,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    program, service, operation, *arguments = words
    assert program == "aws"
    model = SERVICES.get_service_model(service)
    shape = model.operation_model("".join(part.title() for part in operation.split("-"))).input_shape
    members = {_option(member): member for member in shape.members} if shape else {}
    options = [word for word in arguments if word.startswith("--")]
    given = {members[option] for option in options}
    assert set(shape.required_members if shape else ()) <= given
    assert len(arguments) == 2 * len(options), "each option has one value"


def _option(member: str) -> str:
    """Return the option of the command line for a member of a request."""
    return "--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", member[0].upper() + member[1:]).lower()
