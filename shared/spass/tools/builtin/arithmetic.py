"""Arithmetic on text, exact where it can be, bounded in time and size.

simpleeval walks the syntax tree; of what it offers only numbers, operators and named functions stay switched on. Its own bounds
are too wide for a shared service (it evaluates ``9**4000000``: https://github.com/danthedeckie/simpleeval/issues/122) and its
known escapes went through attributes and modules (CVE-2026-32640), so attributes, strings, containers, comprehensions,
comparisons and keywords are refused before it sees the tree, and each operation is ours. An expression has at most a thousand
small operations on numbers of at most 4096 bits: that is its time limit.

A decimal such as 0.1 is the fraction 1/10, not the nearest binary number, so 0.1 + 0.2 is 0.3. Roots, logarithms and the like
give floats, and so does a fraction that has grown past the bound.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from simpleeval import InvalidExpression, SimpleEval

Number: TypeAlias = Fraction | float

MAX_CHARACTERS: Final = 2000
MAX_DEPTH: Final = 120
MAX_BITS: Final = 4096
"""Of an integer, and of a fraction's two halves: 1233 decimal digits."""
MAX_FACTORIAL: Final = 500
MAX_COMBINATION: Final = 4000

_TYPOGRAPHIC_SIGNS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "π": "pi"})

# Python's parser warns on standard error about a keyword that touches a number.
_WORD_AT_NUMBER: Final = re.compile(r"[0-9a-fA-F_.](if|else|and|or|in|is|not|for)\b")
_NOT_ARITHMETIC: Final = (
    "This is more than arithmetic. Write only numbers, + - * / // % **, parentheses and functions such as sqrt(2)."
)


class ArithmeticRefused(Exception):
    """The expression cannot be calculated; the text says what to write instead."""


def evaluate(expression: str) -> Number:
    """The value of ``expression``: a fraction where it is exact, else a finite float.

    Raises:
        ArithmeticRefused: it is not arithmetic, is too big, or has no real value.
    """
    tree = _parse(expression)
    _check(tree)
    evaluator = SimpleEval(operators=dict(_OPERATORS), functions=dict(_FUNCTIONS), names=dict(_CONSTANTS), allowed_attrs={})
    evaluator.nodes = {kind: evaluator.nodes[kind] for kind in (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name)}
    evaluator.nodes[ast.Constant] = _constant
    try:
        return _bounded(evaluator.eval(expression, previously_parsed=tree))
    except ZeroDivisionError:
        raise ArithmeticRefused("This divides by zero.") from None
    except OverflowError:
        raise ArithmeticRefused("A value in this expression is too large.") from None
    except InvalidExpression as error:
        raise ArithmeticRefused(str(error)) from None
    except TypeError:
        raise ArithmeticRefused("A function here has the wrong number of arguments.") from None
    except ValueError:
        raise ArithmeticRefused("This has no real value: a function is asked for a number outside its domain.") from None


def _parse(expression: str) -> ast.expr:
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticRefused(f"The expression is too long: at most {MAX_CHARACTERS} characters. Calculate it in parts.")
    if "'" in expression or '"' in expression:
        raise ArithmeticRefused("Text in quotes is not arithmetic. Write only numbers, operators and functions.")
    if _WORD_AT_NUMBER.search(expression):
        raise ArithmeticRefused(_NOT_ARITHMETIC)
    try:
        return ast.parse(expression.translate(_TYPOGRAPHIC_SIGNS).strip(), mode="eval").body
    except SyntaxError as error:
        raise ArithmeticRefused(
            f"This is not one arithmetic expression ({error.msg}). Write for example (17.5 * 4) / 3 or sqrt(2) ** 3."
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise ArithmeticRefused("This cannot be read: it holds odd characters or is nested too deeply.") from None


def _check(tree: ast.expr) -> None:
    """Refuses, level by level, whatever is not a number, an operator or a call of a known function."""
    level: list[ast.expr] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _operands(node)]
        if not level:
            return
    raise ArithmeticRefused(f"The expression is nested too deeply: at most {MAX_DEPTH} levels. Calculate it in parts.")


def _operands(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return [operand]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in _FUNCTIONS:
                raise ArithmeticRefused(f"There is no function {name[:40]}. There are: {', '.join(sorted(_FUNCTIONS))}.")
            return arguments
        case ast.Name(id=name):
            if name not in _CONSTANTS:
                raise ArithmeticRefused(f"{name[:40]} is not a number. The named numbers are: {', '.join(_CONSTANTS)}.")
            return []
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return []
        case ast.BinOp(op=ast.BitXor()):
            raise ArithmeticRefused("^ is not a power here. Write 2 ** 10.")
        case ast.Tuple():
            raise ArithmeticRefused("A comma separates arguments only. Write 1000000, not 1,000,000, and 3.5, not 3,5.")
        case ast.Call(func=ast.Attribute()) | ast.Attribute():
            raise ArithmeticRefused("Nothing has attributes here. Write sqrt(2), not math.sqrt(2).")
        case _:
            raise ArithmeticRefused(_NOT_ARITHMETIC)


def _constant(node: ast.Constant) -> Number:
    if isinstance(node.value, int):
        return _bounded(Fraction(node.value))
    if isinstance(node.value, float) and math.isfinite(node.value):
        return _bounded(Fraction(repr(node.value)))  # the shortest decimal that means this float is the one that was written
    raise ArithmeticRefused("A number in this expression is too large.")


def _bounded(value: object) -> Number:
    """``value`` as a number that is finite, real and small enough to go on with."""
    if isinstance(value, complex):
        raise ArithmeticRefused("The result is not a real number.")
    if isinstance(value, int | Fraction):
        fraction = Fraction(value)
        if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) <= MAX_BITS:
            return fraction
        if fraction.denominator == 1:
            raise ArithmeticRefused("The result is too large: at most 1233 digits.")
        return to_float(fraction)
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ArithmeticRefused("The result is not a finite number.")


def to_float(value: Number) -> float:
    """The nearest float.

    Raises:
        ArithmeticRefused: ``value`` is outside the range of floats, at either end.
    """
    try:
        nearest = float(value)
    except OverflowError:
        raise ArithmeticRefused("The result is too large.") from None
    if value and not nearest:
        raise ArithmeticRefused("The result is too small to write as a decimal.")
    return nearest


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        times = abs(exponent.numerator)
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits <= 1:  # 0, 1 and -1 have short powers, however large the exponent
            return _bounded(base ** (times % 2 + 2 * bool(times)) if exponent >= 0 or base else base**-1)
        if (bits - 1) * times <= MAX_BITS:
            return _bounded(base**exponent.numerator)
        if base.denominator == 1 and exponent > 0:
            raise ArithmeticRefused("The power is too large: at most 1233 digits.")
    power = _bounded(float(base) ** float(exponent))
    if base and not power:
        raise ArithmeticRefused("The power is too small to write as a decimal.")
    return power


def _binary_operator(calculate: Callable[[Number, Number], object]) -> Callable[[Number, Number], Number]:
    return lambda left, right: _bounded(calculate(left, right))


_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Number]]] = {
    ast.Add: _binary_operator(operator.add),
    ast.Sub: _binary_operator(operator.sub),
    ast.Mult: _binary_operator(operator.mul),
    ast.Div: _binary_operator(operator.truediv),
    ast.FloorDiv: _binary_operator(operator.floordiv),
    ast.Mod: _binary_operator(operator.mod),
    ast.Pow: _power,
    ast.USub: lambda value: _bounded(operator.neg(value)),
    ast.UAdd: _bounded,
}


def _require_integer(value: Number, function: str, *, most: int | None = None) -> int:
    if value != int(value) or value < 0 or (most is not None and value > most):
        raise ArithmeticRefused(f"{function} takes whole numbers from 0 {'on' if most is None else f'to {most}'}.")
    return int(value)


def _real(calculate: Callable[[float], float]) -> Callable[[Number], Number]:
    return lambda value: _bounded(calculate(float(value)))


def _logarithm(calculate: Callable[[int | float], float]) -> Callable[[Number], Number]:
    """Logarithms of integers take the integer itself, which may be larger than any float."""
    return lambda value: _bounded(
        calculate(value.numerator if isinstance(value, Fraction) and value.denominator == 1 else float(value))
    )


def _log(value: Number, base: Number | None = None) -> Number:
    natural = _logarithm(math.log)
    return natural(value) if base is None else _bounded(natural(value) / natural(base))


def _sqrt(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
    return _bounded(math.sqrt(value))


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    if digits != int(digits) or not -300 <= digits <= 300:
        raise ArithmeticRefused("round takes a whole number of digits from -300 to 300.")
    return _bounded(round(Fraction(value), int(digits)))


def _min_or_max(choose: Callable[[tuple[Number, ...]], Number]) -> Callable[..., Number]:
    def of(*values: Number) -> Number:
        if not values:
            raise ArithmeticRefused("min and max take at least one number.")
        return _bounded(choose(values))

    return of


def _factorial(value: Number) -> Number:
    return _bounded(math.factorial(_require_integer(value, "factorial", most=MAX_FACTORIAL)))


def _comb(total: Number, chosen: Number) -> Number:
    return _bounded(
        math.comb(_require_integer(total, "comb", most=MAX_COMBINATION), _require_integer(chosen, "comb", most=MAX_COMBINATION))
    )


_CONSTANTS: Final[Mapping[str, Number]] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_FUNCTIONS: Final[Mapping[str, Callable[..., Number]]] = {
    "abs": lambda value: _bounded(abs(value)),
    "acos": _real(math.acos),
    "asin": _real(math.asin),
    "atan": _real(math.atan),
    "atan2": lambda y, x: _bounded(math.atan2(y, x)),
    "cbrt": _real(math.cbrt),
    "ceil": lambda value: _bounded(math.ceil(value)),
    "comb": _comb,
    "cos": _real(math.cos),
    "cosh": _real(math.cosh),
    "degrees": _real(math.degrees),
    "exp": _real(math.exp),
    "factorial": _factorial,
    "floor": lambda value: _bounded(math.floor(value)),
    "gcd": lambda left, right: _bounded(math.gcd(_require_integer(left, "gcd"), _require_integer(right, "gcd"))),
    "hypot": lambda x, y: _bounded(math.hypot(x, y)),
    "lcm": lambda left, right: _bounded(math.lcm(_require_integer(left, "lcm"), _require_integer(right, "lcm"))),
    "ln": _logarithm(math.log),
    "log": _log,
    "log10": _logarithm(math.log10),
    "log2": _logarithm(math.log2),
    "max": _min_or_max(max),
    "min": _min_or_max(min),
    "pow": _power,
    "radians": _real(math.radians),
    "round": _round,
    "sin": _real(math.sin),
    "sinh": _real(math.sinh),
    "sqrt": _sqrt,
    "tan": _real(math.tan),
    "tanh": _real(math.tanh),
}
