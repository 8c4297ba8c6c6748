"""Sources with the special cases of dataclasses. Each is a module of its own in the folder ``cases``.

``outcome``, if a module has it, returns what its objects do. ``KEPT`` are the classes that keep their decorator, with the reason.
"""

from typing import Final

CASES: Final[dict[str, str]] = {}
CASES["options"] = """
from dataclasses import dataclass
@dataclass
class Plain:
    a: int
    b: str = "b"
@dataclass()
class Called:
    a: int
@dataclass(order=True)
class Ordered:
    a: int
    b: str
@dataclass(frozen=True, order=True, slots=True)
class FrozenOrdered:
    a: int
@dataclass(unsafe_hash=True)
class Unsafe:
    a: int
@dataclass(eq=False)
class Same:
    a: int
@dataclass(eq=False, frozen=True)
class FrozenSame:
    a: int
@dataclass(repr=False, match_args=False, init=False)
class Nothing:
    a: int = 1
@dataclass(slots=True)
class Empty:
    pass
@dataclass(frozen=True)
class FrozenEmpty:
    pass
@dataclass(kw_only=True, slots=True)
class Named:
    a: int
    b: int = 2
"""
CASES["fields"] = """
import dataclasses as data
from dataclasses import KW_ONLY, dataclass as decorate, field as one
COUNTER = iter(range(10**9))
@decorate(frozen=True, slots=True)
class Options:
    a: int = one(compare=False)
    b: int = one(hash=False)
    c: int = one(hash=True, compare=False)
    d: int = one(repr=False)
    e: int = one(default=5, metadata={"of": "e"})
    f: list[int] = one(default_factory=list, kw_only=True)
    g: int = one(default=7, init=False)
    h: dict[str, int] = one(default_factory=dict, init=False, repr=False)
    i: object = data.field(default_factory=lambda: [1], compare=False)
@data.dataclass(order=True)
class Open:
    a: int = one(default=1, init=False)
    b: int = one(init=False)
    c: list[int] = one(default_factory=list)
    d: int = one(default=4, repr=False, compare=False)
@data.dataclass(slots=True)
class Marked:
    a: int
    _: KW_ONLY
    b: int = 2
    c: int = one(kw_only=False, default=3)
    d: int
@data.dataclass(slots=True)
class Counted:
    number: int = one(default_factory=COUNTER.__next__)
def outcome():
    given = []
    return [Options(1, 2, 3, 4, f=given).f is given, Options(1, 2, 3, 4).f is not Options(1, 2, 3, 4).f,
            Counted(), Counted(5), Counted(), Open(c=given).c is given, data.replace(Options(1, 2, 3, 4), a=9)]
"""
CASES["pseudo_fields"] = """
import typing, dataclasses
from dataclasses import InitVar, dataclass, field
from typing import ClassVar
@dataclass(frozen=True, slots=True)
class Given:
    a: int
    seed: InitVar[int]
    b: int = field(init=False)
    more: "InitVar[int]" = 4
    bare: InitVar = None
    limit: ClassVar[int] = 3
    other: typing.ClassVar = None
    quoted: "ClassVar[int]" = 5
    dotted: "typing.ClassVar[int]" = 6
    unset: ClassVar[int]
    def __post_init__(self, seed, more, bare):
        object.__setattr__(self, "b", (seed, more, bare))
@dataclass
class Open:
    seed: dataclasses.InitVar[int] = 1
    a: int = 2
    def __post_init__(self, seed):
        self.a += seed
def outcome():
    return [Given(1, 2), Given(1, 2, 3), Given(1, seed=2, bare=9), Open(3), Open(), Given.limit, Given.more, Open.seed]
"""
CASES["later_annotations"] = """
from __future__ import annotations
import typing as t
from dataclasses import InitVar, KW_ONLY, dataclass, field
from typing import ClassVar
@dataclass(frozen=True, slots=True)
class Texts:
    '''Documented.'''
    a: int
    b: list[Unknown] = field(default_factory=list)
    c: ClassVar[int] = 3
    d: t.ClassVar[int] = 3
    e: InitVar[int] = 4
    _: KW_ONLY
    f: Texts | None = None
    def __post_init__(self, e): pass
@dataclass(frozen=True, slots=True)
class More(Texts):
    g: int = 7
"""
CASES["bases"] = """
import abc
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar
from cases import fields
from cases.pseudo_fields import Open as Renamed
T = TypeVar("T")
@dataclass(frozen=True, slots=True)
class Base:
    a: int
    b: list[int] = field(default_factory=list)
    c: str = "c"
@dataclass(frozen=True, slots=True)
class Derived(Base):
    d: int = 4
@dataclass(frozen=True, slots=True)
class Changed(Derived):
    c: int = 5
    a: int = 1
@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Derived):
    e: int
@dataclass(frozen=True)
class WithDict(Base):
    e: int = 0
class Between(Derived):
    pass
@dataclass(frozen=True, slots=True)
class Distant(Between):
    f: int = 6
@dataclass(frozen=True, slots=True)
class Elsewhere(fields.Options):
    z: int = 9
@dataclass
class Imported(Renamed):
    z: int = 9
    def __post_init__(self, seed):
        super().__post_init__(seed)
@dataclass(slots=True)
class Left:
    a: int = 1
class Right:
    __slots__ = ()
    def __post_init__(self): self.b += 1
@dataclass(slots=True)
class Both(Left, Right):
    b: int = 2
class Slotted:
    __slots__ = ("b", "c")
@dataclass(slots=True)
class OnSlots(Slotted):
    a: int
    b: int
class Unslotted: pass
@dataclass(frozen=True, slots=True)
class OnDict(Unslotted):
    a: int
@dataclass(frozen=True, slots=True)
class Typed(Generic[T]):
    a: T
    b: T | None = None
@dataclass(frozen=True, slots=True)
class Text(Typed[str]):
    c: str = "c"
class Speaks(Protocol[T]):
    name: T
    def speak(self) -> str: ...
@dataclass(slots=True)
class Speaker(Speaks[str]):
    name: str
    def speak(self) -> str: return self.name
class Shape(ABC):
    @abstractmethod
    def area(self) -> int: ...
    @property
    @abc.abstractmethod
    def corners(self) -> int: ...
@dataclass(frozen=True, slots=True)
class Square(Shape):
    side: int
    def area(self) -> int: return self.side ** 2
@dataclass(frozen=True, slots=True)
class Unit(Square):
    corners: ClassVar[int] = 4
@dataclass
class Failed(Exception):
    code: int
    text: str = "failed"
def outcome():
    try:
        raise Failed(3)
    except Failed as error:
        failed = [error.args, str(error)]
    return [Unit(2).area(), Both(), failed, Imported(3), Distant(1, f=2) == Distant(1, f=2), Derived(1) == Base(1),
            hasattr(Derived(1), "__dict__"), hasattr(WithDict(1), "__dict__"), Text("a", c="d"), Speaker("x").speak()]
"""
CASES["private_names"] = """
from dataclasses import dataclass, field
@dataclass(frozen=True, slots=True)
class Secret:
    __key: int
    __list: list[int] = field(default_factory=list)
    __default: int = 3
    def sum(self): return self.__key + self.__default
@dataclass(slots=True)
class _Hidden(Secret.__mro__[1]):
    __key: int = 1
@dataclass(frozen=True, slots=True)
class More(Secret):
    __key: str = "x"
def outcome(): return [Secret(1).sum(), More(1).sum(), repr(More(1))]
"""
CASES["names"] = """
from dataclasses import dataclass, field
from datetime import date
@dataclass(frozen=True, slots=True)
class Shadowed:
    date: date
    self: int
    object: int
    hash: int
    type: int
    super: int
    name: str
    other: int
    value: int
    list: int
    cls: int
    field: tuple[int, ...] = field(default_factory=tuple)
    dict: int = 3
@dataclass(order=True)
class Open:
    self: int
    other: int = 1
    tuple: int = 2
def outcome(): return [repr(Shadowed(*range(11))), hash(Open.__lt__(Open(1), Open(2))), Open(1) < Open(2)]
"""
CASES["defaults"] = """
import decimal
from decimal import Decimal
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, NewType
Time = NewType("Time", str)
LIMIT = Decimal(7)
class Pair(NamedTuple):
    a: int = 1
class Mark:
    pass
@dataclass(frozen=True, slots=True)
class Inner:
    a: int = 1
def parameter(default, *, ge=None):
    'Return a field.'
    limits = {"ge": ge}
    return field(default=default, metadata=limits)
def work(): return 1
@dataclass(frozen=True, slots=True)
class Values:
    START: ClassVar[int] = 3
    a: int = START
    b: int = START + 1
    c: Decimal = LIMIT
    d: Decimal = decimal.Decimal(8)
    e: Time = Time("now")
    f: Pair = Pair()
    g: Inner = Inner()
    h: object = work
    i: object = lambda: 5
    j: object = (1, (2,))
    k: int = parameter(4, ge=2)
    l: str = f"{LIMIT}"
    m: object = decimal.ROUND_UP
    n: frozenset[int] = frozenset()
    o: int = -1
    p: object = Inner
    q: type = int
    r: int = a
@dataclass
class Open:
    a: int = parameter(4)
    b: object = work
    c: int = a if False else 1 if False else 2
def outcome(): return [Values().i(), Values().h(), Values().r, Open().a, Open.a]
"""
CASES["own_methods"] = """
from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class Own:
    a: int
    __match_args__ = ("b",)
    def __repr__(self): return "own"
    def __eq__(self, other): return True
    def __getstate__(self): return [7]
    def __setstate__(self, state): object.__setattr__(self, "a", state[0])
    def __replace__(self, **changes): return self
@dataclass(frozen=True, slots=True)
class Hashed:
    a: int
    def __hash__(self): return 5
@dataclass
class HashedOpen:
    a: int
    def __hash__(self): return 5
@dataclass(frozen=True)
class Unhashable:
    a: int
    __hash__ = None
    def __eq__(self, other): return False
@dataclass(frozen=True, slots=True)
class Initialised:
    a: int
    def __init__(self, text): object.__setattr__(self, "a", int(text))
@dataclass(eq=False, slots=True)
class Compared:
    a: int
    def __lt__(self, other): return True
@dataclass
class Documented:
    __doc__ = "assigned"
    a: int
def outcome(): return [hash(Hashed(1)), hash(HashedOpen(1)), Initialised("4").a, Compared(1) < Compared(1)]
"""
CASES["bodies"] = """
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, final
if TYPE_CHECKING:
    from nowhere import Unknown
    @dataclass
    class Never:
        a: int
@final
@dataclass(frozen=True)
class Cached:
    a: int
    @cached_property
    def twice(self): return self.a * 2
    class Inner:
        b = 1
    @classmethod
    def of(cls): return cls(3)
    @staticmethod
    def three(): return 3
    @property
    def half(self): return self.a / 2
    @half.setter
    def half(self, value): pass
    constant = 4
    quoted: "Unknown | None" = None
@dataclass(weakref_slot=True, slots=True)
class Referred:
    a: int
@dataclass(weakref_slot=True, slots=True)
class ReferredAgain(Referred):
    b: int = 1
def outcome():
    import weakref
    one = Cached(3)
    referred = ReferredAgain(1)
    return [one.twice, one.twice, vars(one), one.Inner.b, one.of(), one.three(), one.half, weakref.ref(referred)() is referred]
"""
CASES["behaviour"] = """
import copy, dataclasses, enum, pickle, threading
from dataclasses import dataclass, field
NAN = float("nan")
@dataclass(slots=True)
class Loop:
    me: object = None
@dataclass(frozen=True, slots=True, order=True)
class Number:
    value: float
    more: int = 1
@dataclass(frozen=True)
class Frozen:
    a: int = 1
    b: list[int] = field(default_factory=list)
class Loose(Frozen):
    pass
def attempt(action):
    try: return repr(action())
    except Exception as error: return [type(error).__name__, str(error)]
def outcome():
    loop = Loop(); loop.me = [loop]
    loose = Loose(); loose.free = 3
    match Number(1.0, 2):
        case Number(value, more): matched = [value, more]
    return [loop, Number(NAN) == Number(NAN), Number(NAN) == Number(float("nan")), Number(1) < Number(2), Number(1) == 1,
            attempt(lambda: Number(1) < 1), attempt(lambda: setattr(loose, "a", 2)), attempt(lambda: delattr(loose, "b")),
            attempt(lambda: setattr(Frozen(), "free", 2)), attempt(lambda: Number()), attempt(lambda: Number(1, 2, 3)),
            attempt(lambda: Number(worth=1)), loose.free, matched, {Number(1): 2}[Number(1)], copy.deepcopy(Frozen(2, [3])),
            dataclasses.asdict(Frozen(2, [3])), dataclasses.fields(Loose)[0].name, dataclasses.is_dataclass(Loose),
            dataclasses.replace(loose, a=5), attempt(lambda: dataclasses.replace(Number(1), other=2)),
            [one.name for one in dataclasses.fields(Frozen())],
            dataclasses.make_dataclass("Made", [("z", int, 3)], bases=(Loop,))(z=1, me=2)]
"""
CASES["kept"] = """
import enum, functools
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import NamedTuple, Protocol
OPTIONS = {"frozen": True}
def decorate(kind): return kind
def either(flag):
    if flag: return field(default=1)
    return 1
class Watched:
    __slots__ = ()
    def __init_subclass__(cls, **named): super().__init_subclass__()
class Meta(type): pass
class Base:
    value = 4
class Descriptor:
    def __get__(self, instance, owner): return 3
if OPTIONS:
    class Conditional: pass
else:
    class Conditional: pass
@dataclass(**OPTIONS)
class Options: a: int
@decorate
@dataclass
class Decorated: a: int
@dataclass
class Registered(Watched): a: int
@dataclass
class Keyword(metaclass=Meta): a: int
@dataclass
class Default(Base): value: int
@dataclass
class Called: a: int = either(1)
@dataclass
class Described: a: int = Descriptor()
@dataclass
class Made: a: object = Decimal.from_float(1.0)
@dataclass
class Seeded:
    seed: InitVar[int] = 1
@dataclass
class SeededAgain(Seeded):
    seed: InitVar[int]
@dataclass
class Static: a: object = staticmethod(len)
@dataclass
class Foreign(enum.Flag.__mro__[-1]): a: int
@dataclass
class Chosen(Conditional): a: int
@dataclass
class Twice:
    a: int = 1
    a = 2
@dataclass
class Method:
    a: int
    def a(self): pass
@dataclass
class Loop:
    for a in (): pass
    b: int = 1
@dataclass
class Computed: a: int = field(default=1, repr=bool(1))
@dataclass
class Shadow(Base):
    Base: int = 1
@dataclass
class Parent:
    a: int = 1
@dataclass
class Child(Parent):
    b: int = 1
    Parent: int = 2
@dataclass
class Shape(Protocol):
    a: int
class Outer:
    @dataclass
    class Nested: a: int
@functools.cache
def local():
    @dataclass
    class Local: a: int
    return Local
def outcome(): return [local()(1), Outer.Nested(2), Static(), Described()]
"""
KEPT: Final[dict[str, str]] = {
    "cases.private_names._Hidden": "the base Secret.__mro__[1] is not known",
    "cases.defaults.Open": "the value a if False else 1 if False else 2 may be a field",
    "cases.kept.Options": "the options of dataclass(**OPTIONS) are not constants",
    "cases.kept.Decorated": "the decorator decorate may change the class",
    "cases.kept.Registered": "the base Watched may change the class",
    "cases.kept.Keyword": "the class statement has keywords",
    "cases.kept.Default": "value has the default of a base",
    "cases.kept.Called": "the value either(1) may be a field or a descriptor",
    "cases.kept.Described": "the value Descriptor() may be a field or a descriptor",
    "cases.kept.Made": "the value Decimal.from_float(1.0) may be a field or a descriptor",
    "cases.kept.SeededAgain": "seed has the default of a base",
    "cases.kept.Static": "the value staticmethod(len) may be a field or a descriptor",
    "cases.kept.Foreign": "the base enum.Flag.__mro__[-1] is not known",
    "cases.kept.Chosen": "cases.kept binds Conditional more than once, or on a condition",
    "cases.kept.Twice": "a is a field and has another meaning",
    "cases.kept.Method": "a is a field and has another meaning",
    "cases.kept.Loop": "the body contains: for a in ():",
    "cases.kept.Computed": "the options of field(default=1, repr=bool(1)) are not constants",
    "cases.kept.Child": "Parent has another meaning in the class",
    "cases.kept.Shape": "a protocol has no methods of its own",
    "cases.kept.Nested": "it is not at the top level of the module",
    "cases.kept.Local": "it is not at the top level of the module",
}
