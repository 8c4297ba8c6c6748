"""Store the documents of a batch, the position after them and the counters of the upload in one transaction. So each document is
stored once, even if a worker dies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from spass.aws import keys
from spass.aws.attributes import Value
from spass.aws.clients import TenantStore
from spass.aws.writes import Absent, Condition, Equals, OneOf, Update, Write
from spass.core.errors import Conflict, SpassError
from spass.core.time import now_s
from spass.rag.index.answers import WriteAnswer
from spass.rag.ingest.batches import Batch
from spass.rag.ingest.parts import PartRecord
from spass.rag.ingest.supersession import not_superseded
from spass.rag.ingest.upload_record import ACTIVE, MAX_ERRORS, UploadError, UploadRecord


class Overtaken(Conflict):
    """A batch did not take effect: its part or its upload has changed since the worker read it."""

    code = "overtaken"


class IndexReplaced(Conflict):
    """The index was deleted or replaced after the upload had begun."""

    code = "index_replaced"


@dataclass(frozen=True, slots=True)
class Advance:
    """The step of a part over a batch, beside the append of the batch's documents. ``record`` and ``part`` are as last read."""

    store: TenantStore
    record: UploadRecord
    part: PartRecord
    batch: Batch

    async def writes(self, answer: WriteAnswer, /) -> Sequence[Write]:
        """Return the writes that take effect together with the append that gives ``answer``.

        Raises:
            IndexReplaced: the index has another generation than when the earlier batches were appended.
        """
        if self.record.generation and self.record.generation != answer.generation:
            raise IndexReplaced(
                "The index was deleted or replaced while this file was being ingested, and what had been ingested went with it; "
                "upload the file again."
            )
        return [self._part(), self._upload(answer.generation), *not_superseded(self.store, self.record)]

    def refusal(self) -> SpassError:
        return Overtaken("The batch was overtaken.")

    def alone(self) -> Sequence[Write]:
        """Return the writes of a batch without documents."""
        return [self._part(), self._upload(""), *not_superseded(self.store, self.record)]

    @property
    def after(self) -> PartRecord:
        """Return the part after the batch."""
        errors = (*self.part.errors, *map(UploadError.of, self.batch.errors))[:MAX_ERRORS]
        return replace(
            self.part,
            position=self.batch.next_position,
            batch=self.part.batch + 1,
            done=self.batch.last,
            failed=self.part.failed + len(self.batch.errors),
            errors=errors,
        )

    def _part(self) -> Update:
        after = self.after
        changes: dict[str, Value] = {
            "position": cast("Mapping[str, Value]", after.position.as_json()),
            "batch": after.batch,
            "failed": after.failed,
        }
        if after.done:
            changes["done"] = True
        if after.errors != self.part.errors:
            changes["errors"] = [error.attributes() for error in after.errors]
        as_read = Equals("owner", self.part.owner) & Equals("batch", self.part.batch)
        return Update(self.part.key, set=changes, when=as_read)

    def _upload(self, generation: str) -> Update:
        counted = {
            "bytes_done": self.batch.next_position.offset - self.part.position.offset,
            "ingested": len(self.batch.documents),
            "failed": len(self.batch.errors),
            "parts_done": int(self.batch.last),
        }
        changes: dict[str, Value] = {"touched": now_s()}
        when: Condition = OneOf("status", list(ACTIVE))
        if generation:
            changes["generation"] = generation
            when &= Absent("generation") | Equals("generation", generation)
        return Update(
            keys.upload(self.store.tenant, self.record.index, self.record.id),
            set=changes,
            add={name: more for name, more in counted.items() if more},
            remove=("resent",),
            when=when,
        )
