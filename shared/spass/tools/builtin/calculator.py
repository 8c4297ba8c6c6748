"""The tool ``calculator``."""

from typing import Annotated, ClassVar

from pydantic import Field

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.tools.base import Tool, ToolError
from spass.tools.builtin.arithmetic import InvalidExpression, Number, evaluate, to_float

_MAX_JSON_INTEGER = 2**53


class Calculator(Tool):
    """Calculates an arithmetic expression and returns the number. Use it for every calculation instead of doing it in your head.

    Operators: + - * / // % ** and parentheses. Functions: sqrt, cbrt, exp, ln, log (natural; log(x, base) for another base),
    log2, log10, sin, cos, tan (radians), degrees, radians, abs, min, max, round(x, digits), floor, ceil, factorial, comb, gcd,
    lcm, hypot, pow and others of that kind. Numbers by name: pi, e. Decimals are exact. No variables, units, percent signs or
    thousands separators: write 80 * 0.12 for 12 % of 80.
    Example: {"expression": "(1499.90 + 250) * 1.19"} returns {"expression": "(1499.90 + 250) * 1.19", "result": 2082.381}.
    """

    category: ClassVar[str] = "math"

    expression: Annotated[str, Field(min_length=1, description="The expression, e.g. sqrt(2) * (3 + 4) or 1.05 ** 10.")]

    async def run(self, _scope: Scope, /) -> Json:
        try:
            result = to_json_number(evaluate(self.expression))
        except InvalidExpression as refusal:
            raise ToolError(str(refusal), code="invalid_expression") from None
        return {"expression": self.expression, "result": result}


def to_json_number(value: Number) -> Json:
    """Return ``value`` as JSON.

    An integer above 2**53 becomes a string of digits, because JSON readers may round it. A fraction that is not an integer
    becomes the nearest float. A float is rounded to 15 significant digits.

    Raises:
        InvalidExpression: ``value`` is a fraction outside the range of floats.
    """
    if isinstance(value, float):
        return float(f"{value:.15g}")
    if value.denominator == 1:
        return value.numerator if abs(value.numerator) <= _MAX_JSON_INTEGER else str(value.numerator)
    return to_float(value)
