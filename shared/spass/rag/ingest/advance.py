"""Store a batch in one transaction: its documents, the position after them and the counters of the upload.

So each document is stored exactly once, even if a worker dies.
"""

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
    """Raised if a batch did not take effect, because its part or its upload changed after the worker had read it."""

    code = "overtaken"


class IndexReplaced(Conflict):
    """Raised if the index was deleted or replaced after the upload had begun."""

    code = "index_replaced"


@dataclass(frozen=True, slots=True)
class Advance:
    """The participant that advances a part by one batch, in the transaction that appends the documents of the batch.

    ``record`` and ``part`` are the stored values that the worker read last.
    """

    store: TenantStore
    record: UploadRecord
    part: PartRecord
    batch: Batch

    async def writes(self, answer: WriteAnswer, /) -> Sequence[Write]:
        """Return the writes to commit together with the append whose result is ``answer``.

        Raises:
            IndexReplaced: the generation of the index is not the one that the earlier batches were appended to.
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
        """Return the writes to commit for a batch without documents, which needs no append."""
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
        unchanged = Equals("owner", self.part.owner) & Equals("batch", self.part.batch)
        return Update(self.part.key, set=changes, when=unchanged)

    def _upload(self, generation: str) -> Update:
        increments = {
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
            add={name: amount for name, amount in increments.items() if amount},
            remove=("resent",),
            when=when,
        )
