"""Random programs for the sandbox's child: cells with calls, errors, random numbers and times."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from spass.core.messages import Json
from tests.child_harness import CellOf, Reply, Request

TOOLS: Final = ("search", "lookup")
CONTEXT: Final[Json] = ["alpha", {"beta": [1, 2, 3]}, "gamma " * 50]
_NAMES: Final = ("a", "b", "c", "d")

PRELUDE: Final = """\
a, b, c, d = 1, "two", [3], {"four": 4}
def ask(value):
    return llm_query(f"about {value}")
class Counter:
    total = 0
    def add(self, value):
        self.total += len(str(value))
        return ask(self.total)
counter = Counter()
def tokens():
    for word in {"red", "green", "blue", "black"}:
        yield word
"""

_VALUES: Final = (
    "len(str({x}))",
    "sorted(map(str, [{x}, {y}]))",
    "{{str({x})[:9]: {y}}}",
    "[*tokens()]",
    "{{'x', 'y', 'zz', str({x})[:5]}}",
    "hash(str({x})) % 1000",
    "context[{n} % 3]",
    "__import__('random').random()",
    "__import__('random').sample(range(1000), {n})",
    "__import__('random').Random().randrange(10**6)",
    "__import__('random').SystemRandom().randrange(10**6)",
    "__import__('os').urandom({n}).hex()",
    "__import__('secrets').token_hex({n})",
    "str(__import__('uuid').uuid4())",
    "__import__('time').time()",
    "__import__('time').perf_counter_ns()",
    "__import__('time').process_time()",
    "__import__('time').strftime('%H:%M:%S')",
    "__import__('time').localtime().tm_sec",
    "str(__import__('datetime').datetime.now())",
    "__import__('time').sleep({n} / 7)",
    "(str({x}) + str({y}))[:99]",
    "{x}[{n}]",
    "1 // ({n} % 4)",
)

_CALLS: Final = (
    "ask({x})",
    "ask({n})",
    "llm_query(str({x})[:40] + '{n}')",
    "llm_batch([str({x})[:20] + '0', 'fixed', '{n}'])",
    "search(query=str({x})[:30], limit={n})",
    "lookup(key=[{n}, None])",
    "[lookup(key=word)['count'] for word in tokens() if len(word) < {n}]",
    "counter.add({x})",
    "[llm_query(f'item {{i}} {n}') for i in range(2)]",
)
_CALL_ODDS: Final = 0.4

_STATEMENTS: Final = (
    *6 * ("{z} = {value}",),
    "print({value})",
    "{value}",
    "print({x}, {y}, sep='|')",
    "if len(str({x})) % 2:\n    {z} = {value}\nelse:\n    print({y})",
    "try:\n    {z} = {value}\nexcept LLMError as error:\n    print('failed', error.code)",
    "try:\n    {z} = {value}\nexcept (ToolError, TypeError, KeyError) as error:\n    print(repr(error))",
    "try:\n    {z} = {value}\nfinally:\n    print('finally', {x})",
    "for word in tokens():\n    if word > 'c': {z} = llm_query(word + str({x})[:10])",
    "def helper(value={n}):\n    return {value}\n{z} = helper()",
    "with open('notes.txt', 'a+') as notes:\n    notes.write(str({x})[:50]); notes.seek(0); print(notes.read()[-80:])",
    "import sys; print('to stderr', {x}, file=sys.stderr)",
    "print('x' * {n}00, {x})",
    "{z} = (lambda x={x}: (x, {n}))()",
    "assert isinstance({x}, (int, str, list)), str({y})[:40]",
    "{value}; missing",
    "raise ValueError(str({x})[:60])",
    "FINAL({{'x': str({x}), 'n': {n}}})",
)
_RARE: Final = ("raise ", "FINAL", "assert ")
_RARE_ODDS: Final = 0.15


def random_program(rng: Random) -> Sequence[CellOf]:
    """Return the cells of a turn."""
    cells = [[PRELUDE], *([] for _ in range(rng.randrange(4)))]
    for cell in cells:
        for _ in range(rng.randrange(2, 7)):
            statement = _statement(rng)
            if (statement.startswith(_RARE) or statement.endswith("missing")) and rng.random() > _RARE_ODDS:
                continue
            cell.append(statement)
    return [CellOf("\n".join(cell), tools=TOOLS, max_output_chars=rng.choice([150, 10_000])) for cell in cells]


def answers() -> Callable[[Sequence[Request]], Sequence[Reply]]:
    """Return a function that answers each request differently. Some answers are errors."""
    count = 0

    def answer(requests: Sequence[Request]) -> Sequence[Reply]:
        nonlocal count
        replies: list[Mapping[str, Json]] = []
        for request in requests:
            count += 1
            check = zlib.crc32(repr(request).encode()) % 1000
            if count % 6 == 0:
                replies.append({"error": {"code": "upstream_error", "message": f"Call {count} failed."}})
            elif "query" in request:
                replies.append({"value": f"{count}:{check}"})
            else:
                replies.append({"value": {"count": count, "found": [check, None, "text"]}})
        return replies

    return answer


def _statement(rng: Random) -> str:
    names = {name: rng.choice(_NAMES) for name in "xyz"}
    number = rng.randrange(1, 9)
    value = rng.choice(_CALLS if rng.random() < _CALL_ODDS else _VALUES).format(**names, n=number)
    return rng.choice(_STATEMENTS).format(**names, n=number, value=value)
