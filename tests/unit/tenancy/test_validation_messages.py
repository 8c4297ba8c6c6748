"""The messages for values that pydantic refuses."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from spass.tenancy.validation_messages import explain_error


class Body(BaseModel, extra="forbid", strict=True):
    text: Annotated[str, Field(min_length=1, pattern="^[a-z]*$")] = "a"
    numbers: Annotated[list[int], Field(max_length=2)] = []
    mode: Literal["on", "off"] = "on"
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5

    @field_validator("mode")
    @classmethod
    def _reject_off(cls, mode: str) -> str:
        if mode == "off":
            raise ValueError("must be on for this test")
        return mode


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": 5}, "must be text"),
        ({"text": ""}, "must have at least 1 character"),
        ({"text": "A"}, "must match pattern '^[a-z]*$'"),
        ({"numbers": [1, 2, 3]}, "must have at most 2 items, not 3"),
        ({"numbers": ["1"]}, "must be a whole number"),
        ({"mode": "auto"}, "must be 'on' or 'off'"),
        ({"mode": "off"}, "must be on for this test"),
        ({"share": 2}, "must be less than or equal to 1"),
        ({"share": float("nan")}, "must be a number"),
        ({"shared": 1}, "is unknown; remove it"),
    ],
)
def test_a_refused_value_gets_a_plain_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(fields)
    (error,) = caught.value.errors()
    assert explain_error(error["type"], error["msg"]) == message
