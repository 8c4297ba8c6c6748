"""The base class of all answers, and types of their fields."""

from operator import not_
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticSerializationError

from spass.core.ids import JobId, SessionId, SummaryId, id_pattern
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.core.time import Timestamp


def _without_titles(schema: dict[str, Any]) -> None:
    """Remove titles, which repeat the names, and defaults, which mean nothing in an answer."""
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
        field.pop("default", None)


class ResponseModel(BaseModel):
    """An answer, or a part of one. Its route declares it, and FastAPI writes the OpenAPI document from it.

    Bounds and patterns are in the document alone (``WithJsonSchema``): an unusual value must not turn an answer into an error.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_serialization_defaults_required=True,
        json_schema_extra=_without_titles,
    )

    def to_json(self) -> bytes:
        """Return the answer as JSON in UTF-8. Half of a surrogate pair, which UTF-8 cannot write, becomes a question mark."""
        try:
            return self.__pydantic_serializer__.to_json(self)
        except PydanticSerializationError:
            return dump_bytes(self.to_dict())

    def to_dict(self) -> dict[str, Json]:
        return self.model_dump(mode="json")


class Deletion(ResponseModel):
    """The answer to a DELETE. `deleted` is false if there was nothing to delete."""

    deleted: bool


LEAVE_OUT_IF_EMPTY: Final = Field(exclude_if=not_)
"""Marks a field that is absent from the answer when it is empty or False."""

Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
SessionIdText = Annotated[SessionId, WithJsonSchema({"type": "string", "pattern": f"^{id_pattern('ses')}$"})]
SummaryIdText = Annotated[SummaryId, WithJsonSchema({"type": "string", "pattern": f"^{id_pattern('sum')}$"})]
JobIdText = Annotated[JobId, WithJsonSchema({"type": "string", "pattern": f"^{id_pattern('job')}$"})]
DateTime = Annotated[Timestamp, WithJsonSchema({"type": "string", "format": "date-time"})]
DecimalText = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[0-9]+([.][0-9]+)?$"})]
"""An amount of money, exact."""
ModelName = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 128})]
JsonObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
JsonValue = Annotated[Any, WithJsonSchema({"description": "Any JSON value."})]
NextCursor = Annotated[
    str | None, WithJsonSchema({"type": ["string", "null"], "description": "Of the next page; null at the end."})
]
