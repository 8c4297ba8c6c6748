"""The table in memory, as far as limits need it: update expressions and conditions, one write after the other."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar, cast

from spass.aws.attributes import Item, Value, attribute_of, item_of
from spass.aws.faults import AwsCall, FaultPlan
from spass.aws.keys import Key
from spass.aws.retry import retry_once
from spass.aws.table import Condition, ConditionFailed, Update

T = TypeVar("T")


@dataclass
class MemoryTable:
    """``plan`` stands where ``aws.faults`` has its seam. ``calls`` counts the calls that were made, failed ones too."""

    items: dict[Key, Item] = field(default_factory=dict)
    plan: FaultPlan | None = None
    calls: int = 0
    watch: Callable[[Item, Item], None] = lambda before, after: None
    """Sees an item before and after each write that takes effect."""

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._call("GetItem", lambda: deepcopy(self.items.get(key)))

    async def write(self, write: Update) -> Item | None:
        return await self._call("UpdateItem", lambda: self._update(write))

    async def _call(self, operation: str, run: Callable[[], T]) -> T:
        async def call() -> T:
            self.calls += 1
            return await self.plan.around(AwsCall("dynamodb", operation, {}), run) if self.plan else run()

        return await retry_once(call)

    def _update(self, write: Update) -> Item:
        before = self.items.get(write.key)
        item: Item = deepcopy(before) if before else {"pk": write.key.pk, "sk": write.key.sk}
        names, values = dict(write.names), dict(write.values)
        if write.condition is not None:
            names |= write.condition.names
            values |= write.condition.values
            if not _holds(write.condition, before or {}, names, values):
                raise ConditionFailed(deepcopy(before))
        _apply(write.expression, item, names, values)
        self.items[write.key] = item_of({name: attribute_of(value) for name, value in item.items()})
        self.watch(before or {}, self.items[write.key])
        return deepcopy(self.items[write.key])


def _holds(condition: Condition, item: Item, names: Mapping[str, str], values: Mapping[str, Value]) -> bool:
    return all(_term_holds(term, item, names, values) for term in condition.expression.split(" AND "))


def _term_holds(term: str, item: Item, names: Mapping[str, str], values: Mapping[str, Value]) -> bool:
    if found := re.fullmatch(r"attribute_(not_)?exists\((\S+)\)", term):
        return (_read(found[2], item, names) is not None) == (found[1] is None)
    if found := re.fullmatch(r"size\((\S+)\) = (:\w+)", term):
        held = _read(found[1], item, names)
        return held is not None and len(cast("frozenset[str]", held)) == cast(int, values[found[2]])
    if found := re.fullmatch(r"(NOT )?contains\((\S+), (:\w+)\)", term):
        members = cast("frozenset[str]", _read(found[2], item, names) or frozenset())
        return (values[found[3]] in members) == (found[1] is None)
    found = re.fullmatch(r"(\S+) (=|<=) (:\w+)", term)
    assert found, f"an unknown condition: {term}"
    left, right = _read(found[1], item, names), values[found[3]]
    if left is None:
        return False
    return left == right if found[2] == "=" else cast(int, left) <= cast(int, right)


def _apply(expression: str, item: Item, names: Mapping[str, str], values: Mapping[str, Value]) -> None:
    found = re.fullmatch(r"(?:SET (.+?))? ?(?:REMOVE (.+?))? ?(?:ADD (.+?))? ?(?:DELETE (.+))?", expression)
    assert found, f"an unknown update: {expression}"
    before = deepcopy(item)
    changed: list[str] = []
    for assignment in found[1].split(", ") if found[1] else []:
        path, _, new = assignment.partition(" = ")
        operand, _, added = new.rpartition(" + ")
        value = values[added]
        if operand:
            held = _read(operand, before, names)
            assert held is not None, f"nothing to add to: {expression}"
            value = cast(int, held) + cast(int, value)
        holder, name = _holder(path, item, names)
        holder[name] = value
        changed.append(path)
    for path in found[2].split(", ") if found[2] else []:
        holder, name = _holder(path, item, names)
        holder.pop(name, None)
        changed.append(path)
    for addition in found[3].split(", ") if found[3] else []:
        path, _, added = addition.partition(" ")
        item[names[path]] = _sum(before.get(names[path]), values[added])
        changed.append(path)
    for deletion in found[4].split(", ") if found[4] else []:
        path, _, deleted = deletion.partition(" ")
        left = cast("frozenset[str]", before.get(names[path], frozenset())) - cast("frozenset[str]", values[deleted])
        item.pop(names[path], None)
        if left:
            item[names[path]] = left
        changed.append(path)
    assert not any(one != other and f"{one}.".startswith(f"{other}.") for one in changed for other in changed)
    assert len(changed) == len(set(changed)), f"two paths overlap: {expression}"


def _sum(held: Value, added: Value) -> Value:
    if isinstance(added, frozenset):
        return added | cast("frozenset[str]", held or frozenset())
    return cast(int, held or 0) + cast(int, added)


def _read(path: str, item: Item, names: Mapping[str, str]) -> Value:
    held: Value = item
    for part in path.split("."):
        if not isinstance(held, Mapping):
            return None
        held = held.get(names.get(part, part))
    return held


def _holder(path: str, item: Item, names: Mapping[str, str]) -> tuple[Item, str]:
    *above, last = path.split(".")
    holder: Value = item
    for part in above:
        holder = cast(Item, holder).get(names[part])
        assert isinstance(holder, dict), f"no map to write into: {path}"
    return cast(Item, holder), names[last]
