"""Evaluate arithmetic in text: exactly where possible, with bounds on time and size.

The evaluator walks Python's syntax tree and knows only numbers, operators, named numbers and named functions; it refuses every
other node. An expression has at most 2000 characters and so at most 2000 small operations. Every intermediate number is bounded,
and the operations that could exceed the bound by far (powers, factorials, combinations) are checked before they run.

A decimal such as 0.1 is the fraction 1/10 and not the nearest binary number, so 0.1 + 0.2 is 0.3. Roots, logarithms and the like
return floats. A fraction that exceeds the bound becomes a float.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

Number: TypeAlias = Fraction | float

MAX_CHARACTERS: Final = 2000
MAX_DEPTH: Final = 120
MAX_BITS: Final = 4096
"""Bits of an integer, and of the numerator and the denominator of a fraction: 1233 decimal digits."""
MAX_FACTORIAL: Final = 500
MAX_COMBINATION: Final = 4000

_TYPOGRAPHIC_SIGNS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "π": "pi"})

# Python's parser writes a warning to standard error if a keyword touches a number.
_WORD_AT_NUMBER: Final = re.compile(r"[0-9a-fA-F_.](if|else|and|or|in|is|not|for)\b")
_NOT_ARITHMETIC: Final = (
    "This is more than arithmetic. Write only numbers, + - * / // % **, parentheses and functions such as sqrt(2)."
)


class InvalidExpression(Exception):
    """The expression cannot be calculated. The message says what to write instead."""


def evaluate(expression: str) -> Number:
    """Return the value of ``expression``: a fraction if it is exact, else a finite float. Raise InvalidExpression if it is not
    arithmetic, is too large, or has no real value."""
    tree = _parse(expression)
    try:
        return _value(tree, MAX_DEPTH)
    except ZeroDivisionError:
        raise InvalidExpression("This divides by zero.") from None
    except OverflowError:
        raise InvalidExpression("A value in this expression is too large.") from None
    except TypeError:
        raise InvalidExpression("A function here has the wrong number of arguments.") from None
    except ValueError:
        raise InvalidExpression("This has no real value: the argument of a function is outside its domain.") from None


def _parse(expression: str) -> ast.expr:
    if len(expression) > MAX_CHARACTERS:
        raise InvalidExpression(f"The expression is too long: at most {MAX_CHARACTERS} characters. Calculate it in parts.")
    if "'" in expression or '"' in expression:
        raise InvalidExpression("Text in quotes is not arithmetic. Write only numbers, operators and functions.")
    if _WORD_AT_NUMBER.search(expression):
        raise InvalidExpression(_NOT_ARITHMETIC)
    try:
        return ast.parse(expression.translate(_TYPOGRAPHIC_SIGNS).strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidExpression(
            f"This is not one arithmetic expression ({error.msg}). Write for example (17.5 * 4) / 3 or sqrt(2) ** 3."
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise InvalidExpression("This cannot be read: it has unusual characters or is nested too deeply.") from None


def _value(node: ast.expr, levels: int) -> Number:
    """Return the value of ``node``, whose tree may have at most ``levels`` levels."""
    if not levels:
        raise InvalidExpression(f"The expression is nested too deeply: at most {MAX_DEPTH} levels. Calculate it in parts.")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _check_bounds(_to_fraction(number))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if sign := _SIGNS.get(type(op)):
            return _check_bounds(sign(_value(operand, levels - 1)))
        case ast.BinOp(left=left, op=op, right=right) if operation := _OPERATIONS.get(type(op)):
            return _check_bounds(operation(_value(left, levels - 1), _value(right, levels - 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if function := _FUNCTIONS.get(name):
            return _check_bounds(function(*[_value(argument, levels - 1) for argument in arguments]))
        case _:
            raise InvalidExpression(_advice(node))


def _advice(node: ast.expr) -> str:
    """Return what to write instead of ``node``."""
    match node:
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return f"There is no function {name[:40]}. There are: {', '.join(sorted(_FUNCTIONS))}."
        case ast.Name(id=name):
            return f"{name[:40]} is not a number. The named numbers are: {', '.join(_CONSTANTS)}."
        case ast.BinOp(op=ast.BitXor()):
            return "^ is not a power here. Write 2 ** 10."
        case ast.Tuple():
            return "A comma separates arguments only. Write 1000000, not 1,000,000, and 3.5, not 3,5."
        case ast.Call(func=ast.Attribute()) | ast.Attribute():
            return "Nothing has attributes here. Write sqrt(2), not math.sqrt(2)."
        case _:
            return _NOT_ARITHMETIC


def _to_fraction(number: float) -> Fraction:
    if isinstance(number, int):
        return Fraction(number)
    if math.isfinite(number):
        return Fraction(repr(number))  # repr gives the shortest decimal of the float, which is the one in the expression
    raise InvalidExpression("A number in this expression is too large.")


def _check_bounds(value: complex | Fraction) -> Number:
    """Return ``value`` if it is finite, real and small enough for further operations. A long fraction becomes a float."""
    if isinstance(value, complex):
        raise InvalidExpression("The result is not a real number.")
    if isinstance(value, int | Fraction):
        fraction = Fraction(value)
        if _bits(fraction) <= MAX_BITS:
            return fraction
        if fraction.denominator == 1:
            raise InvalidExpression("The result is too large: at most 1233 digits.")
        return to_float(fraction)
    if math.isfinite(value):
        return value
    raise InvalidExpression("The result is not a finite number.")


def _bits(fraction: Fraction) -> int:
    return max(fraction.numerator.bit_length(), fraction.denominator.bit_length())


def to_float(value: Number) -> float:
    """Return the nearest float.

    Raises:
        InvalidExpression: ``value`` is outside the range of floats, at either end.
    """
    try:
        nearest = float(value)
    except OverflowError:
        raise InvalidExpression("The result is too large.") from None
    if value and not nearest:
        raise InvalidExpression("The result is too small to write as a decimal.")
    return nearest


def _power(base: Number, exponent: Number) -> complex | Fraction:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        times = abs(exponent.numerator)
        bits = _bits(base)
        if bits <= 1:  # powers of 0, 1 and -1 depend on the sign of the exponent and on whether it is odd
            return base ** (times % 2 + 2 * bool(times)) if exponent >= 0 or base else base**-1
        if (bits - 1) * times <= MAX_BITS:
            return base**exponent.numerator
        if base.denominator == 1 and exponent > 0:
            raise InvalidExpression("The power is too large: at most 1233 digits.")
    power: complex = float(base) ** float(exponent)
    if base and not power:
        raise InvalidExpression("The power is too small to write as a decimal.")
    return power


def _require_integer(value: Number, function: str, *, maximum: int | None = None) -> int:
    if value != int(value) or value < 0 or (maximum is not None and value > maximum):
        raise InvalidExpression(f"{function} takes whole numbers from 0 {'on' if maximum is None else f'to {maximum}'}.")
    return int(value)


def _log_argument(value: Number) -> float:
    """Return an integer as it is, because it may be larger than any float, and any other number as a float."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else float(value)


def _sqrt(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
    return math.sqrt(value)


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    if digits != int(digits) or not -300 <= digits <= 300:
        raise InvalidExpression("round takes a whole number of digits from -300 to 300.")
    return round(Fraction(value), int(digits))


def _comb(total: Number, size: Number) -> int:
    return math.comb(
        _require_integer(total, "comb", maximum=MAX_COMBINATION), _require_integer(size, "comb", maximum=MAX_COMBINATION)
    )


_OF_MATH: Final = (
    *("acos", "asin", "atan", "atan2", "cbrt", "ceil", "cos", "cosh", "degrees", "exp", "floor"),
    *("hypot", "radians", "sin", "sinh", "tan", "tanh"),
)
"""Functions of the module ``math`` that need no check."""
_CONSTANTS: Final[Mapping[str, Number]] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_SIGNS: Final[Mapping[type[ast.unaryop], Callable[[Number], Number]]] = {
    ast.USub: lambda value: -value,
    ast.UAdd: lambda value: value,
}

_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[Number, Number], complex | Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

_FUNCTIONS: Final[Mapping[str, Callable[..., complex | Fraction]]] = {
    **{name: getattr(math, name) for name in _OF_MATH},
    "abs": abs,
    "comb": _comb,
    "factorial": lambda value: math.factorial(_require_integer(value, "factorial", maximum=MAX_FACTORIAL)),
    "gcd": lambda left, right: math.gcd(_require_integer(left, "gcd"), _require_integer(right, "gcd")),
    "lcm": lambda left, right: math.lcm(_require_integer(left, "lcm"), _require_integer(right, "lcm")),
    "ln": lambda value: math.log(_log_argument(value)),
    "log": lambda value, *base: math.log(_log_argument(value), *map(_log_argument, base)),
    "log10": lambda value: math.log10(_log_argument(value)),
    "log2": lambda value: math.log2(_log_argument(value)),
    "max": lambda first, *others: max((first, *others)),
    "min": lambda first, *others: min((first, *others)),
    "pow": _power,
    "round": _round,
    "sqrt": _sqrt,
}
