"""Run the cells of a turn.

The parent writes one start line ``{"token", "started", "limits", "variables", "cells", "journal"}``, then ``{"entry"}`` as the
answer to an effect, or ``{"cell"}``. The child writes ``{"ready"}``, ``{"effect"}``, ``{"cell"}``, ``{"suspended"}`` and
``{"diverged"}``, each behind the token.
"""

from __future__ import annotations

import _ast
import builtins
import sys
from posix import _exit, getcwd

from spass.sandbox.child.calls import answer_text, model_functions, tool_function
from spass.sandbox.child.confinement import ConfinementFailed, confine
from spass.sandbox.child.connection import Connection
from spass.sandbox.child.effects import Effects, LLMError, ToolError
from spass.sandbox.child.failures import describe
from spass.sandbox.child.output import Output, TextStream
from spass.sandbox.child.repeatability import Clock, make_repeatable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ast import Module
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

_RECURSION_LIMIT = 1000
_RESERVE = 4 * 2**20
_NO_HASH_SEED = 4
_set_trace, _set_profile = sys.settrace, sys.setprofile
_get_recursion_limit, _set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit


def main() -> NoReturn:
    """Run cells until the parent closes the pipe."""
    if sys.flags.hash_randomization:
        _exit(_NO_HASH_SEED)
    connection = Connection()
    start = connection.receive_start()
    clock = Clock(start["started"])
    output = Output()
    streams = TextStream(output, 1), TextStream(output, 2)
    _set_streams(streams)
    try:
        connection.send("ready", confine(start["limits"], getcwd(), (0, 1, 2, *connection.descriptors)))
    except ConfinementFailed as failure:
        connection.end("refused", str(failure))
    make_repeatable(clock, output, str(start["started"]))
    program = Program(connection, clock, output, streams, start)
    sys.unraisablehook = program.show_ignored
    for method in (Program.run, Program._execute):  # noqa: SLF001
        # A warning about a value that these frames release names their file.
        method.__code__ = method.__code__.replace(co_filename="<sandbox>")
    journals = start["journal"]
    for number, cell in enumerate(start["cells"]):
        is_last = number == len(start["cells"]) - 1
        program.run(cell, journals[number] if number < len(journals) else (), is_replay=not is_last)
    while (line := connection.receive()) is not None:
        program.run(line["cell"], ())
    _exit(0)


class Program:
    """The namespace of a turn, and the cells that ran in it."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        output: Output,
        streams: tuple[TextStream, TextStream],
        start: Mapping[str, Any],
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._output = output
        self._effects = Effects(connection, clock, start["limits"]["waits"])
        self._streams = streams
        self._sources: dict[str, Sequence[str]] = {}
        self._builtins = tuple(vars(builtins).items())
        self._main = _new_module("__main__")
        self._copy_of_builtins = _new_module("builtins")
        vars(self._copy_of_builtins).update(self._builtins)
        # Cells change a copy: the functions of this process and of the standard library keep the originals.
        sys.modules.update({"__main__": self._main, "builtins": self._copy_of_builtins})
        vars(self._main).update(start["variables"], __builtins__=self._copy_of_builtins)
        self._count = 0
        self._reserve: bytes | None = None

    def run(self, cell: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], *, is_replay: bool = False) -> None:
        """Run one cell and report it."""
        number = self._count
        self._count += 1
        filename = f"<cell {cell.get('number', number + 1)}>"
        self._sources[filename] = cell["code"].split("\n")
        self._clock.advance_to(cell["time"])
        self._output.begin(cell["max_output_chars"])
        self._add_names(cell)
        self._reserve = bytes(_RESERVE)  # takes address space, but no memory: its pages are not touched
        self._effects.begin(number, journal, is_replay=is_replay)
        failure = self._execute(cell["code"], filename)
        self._reserve = None  # a cell that used up the memory can be described
        error = None if failure is None else describe(failure, self._sources)
        exceeded = "memory" if isinstance(failure, MemoryError) else None
        # Release the frames now: a later collection of garbage would call their finalizers at a time that no run repeats.
        del failure
        self._restore()
        self._effects.end()
        self._report(error=error, exceeded=exceeded)

    def _execute(self, code: str, filename: str) -> BaseException | None:
        """Run the code. Print the value of a last expression, as the interactive Python does."""
        namespace = vars(self._main)
        try:
            statements, expression = compile_cell(code, filename)
        except Exception as error:  # noqa: BLE001
            return error if type(error) is not MemoryError else SyntaxError("the code is nested too deeply")
        try:
            exec(statements, namespace)  # noqa: S102
            if expression is not None:
                value = eval(expression, namespace)  # noqa: S307
                if value is not None:
                    self._streams[0].write(repr(value) + "\n")
        except BaseException as error:  # noqa: BLE001
            return None if type(error) is SystemExit and _is_success(error.code) else error
        finally:
            _set_trace(None)
            _set_profile(None)
        return None

    def _add_names(self, cell: Mapping[str, Any]) -> None:
        """Define what the cell may call, except for names that an earlier cell has assigned. ``FINAL`` cannot be lost."""
        names: dict[str, object] = {name: tool_function(self._effects, name) for name in cell["tools"] if name.isidentifier()}
        names["ToolError"] = ToolError
        if cell["queries"]:
            names.update(model_functions(self._effects), LLMError=LLMError)
            vars(self._main)["FINAL"] = self._make_final()
        for name, value in names.items():
            vars(self._main).setdefault(name, value)

    def _make_final(self) -> object:
        def FINAL(value: object) -> NoReturn:  # noqa: N802
            """End the turn with ``value`` as the answer: a string as it is, otherwise JSON, otherwise str(value)."""
            text = answer_text(value)
            if not self._effects.is_open:
                raise RuntimeError("FINAL works only while a cell runs")
            self._effects.end()
            self._report(final=text)
            _exit(0)

        return FINAL

    def show_ignored(self, ignored: Any, /) -> None:  # noqa: ANN401 (sys.UnraisableHookArgs)
        """Print an exception that a finalizer raised, without the paths of the standard library. See ``sys.unraisablehook``."""
        name = getattr(ignored.object, "__qualname__", None)
        place = f" in {name}" if type(name) is str else ""
        self._streams[1].write(f"Exception ignored{place}: {describe(ignored.exc_value, self._sources)}\n")

    def _report(self, *, error: str | None = None, final: str | None = None, exceeded: str | None = None) -> None:
        self._connection.send(
            "cell",
            {
                "number": self._count - 1,
                "output": self._output.text,
                "error": error,
                "truncated": self._output.truncated,
                "final": final,
                "exceeded": exceeded,
            },
        )

    def _restore(self) -> None:
        if _get_recursion_limit() < _RECURSION_LIMIT:
            _set_recursion_limit(_RECURSION_LIMIT)
        _set_streams(self._streams)
        vars(self._copy_of_builtins).update(self._builtins)
        vars(self._main)["__builtins__"] = self._copy_of_builtins


def _set_streams(streams: tuple[TextStream, TextStream]) -> None:
    stdout, stderr = streams
    vars(sys).update(stdout=stdout, __stdout__=stdout, stderr=stderr, __stderr__=stderr)


def _is_success(code: object) -> bool:
    return code is None or (type(code) is int and code == 0)


def _new_module(name: str) -> ModuleType:
    return type(sys)(name)


def compile_cell(code: str, filename: str) -> tuple[CodeType, CodeType | None]:
    """Return the statements of a cell as code, and separately its last statement if that is an expression.

    Raises:
        SyntaxError: the code is not Python.
        ValueError: it contains a null character or half of a surrogate pair.
        MemoryError: it is nested too deeply for the parser.
        RecursionError: it is nested too deeply for the compiler.
    """
    try:
        tree: Module = compile(code, filename, "exec", _ast.PyCF_ONLY_AST | 0, dont_inherit=True)
    except (RecursionError, MemoryError):
        return compile(code, filename, "exec", dont_inherit=True), None  # the compiler alone can go deeper
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, _ast.Expr):
        return compile(tree, filename, "exec", dont_inherit=True), None
    del tree.body[-1]
    expression = compile(_ast.Expression(last.value), filename, "eval", dont_inherit=True)
    return compile(tree, filename, "exec", dont_inherit=True), expression
