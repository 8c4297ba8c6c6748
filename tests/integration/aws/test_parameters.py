"""Read encrypted parameters from an emulated AWS."""

import secrets

from spass.aws.clients import Aws


def test_parameters_are_decrypted_and_missing_ones_are_omitted(aws: Aws) -> None:
    first, second, missing = (f"/spass/{secrets.token_hex(6)}/{name}" for name in ("FIRST", "SECOND", "MISSING"))
    for name in (first, second):
        aws._ssm.put_parameter(Name=name, Value=f"the key {name}", Type="SecureString")
    assert aws.get_parameters([first, second, missing]) == {first: f"the key {first}", second: f"the key {second}"}
