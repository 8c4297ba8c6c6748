"""The text that a model reads about an exception of its code."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    Sources = Mapping[str, Sequence[str]]
    """The lines of each cell, by the cell's file name."""

_MAX_MESSAGE = 2000
_MAX_LINE = 200
_MAX_FRAMES = 8
_type_name = type.__dict__["__name__"].__get__
_ASYNCIO = "/asyncio/"
_NO_ASYNCIO = "An event loop of asyncio needs a pair of sockets, which code cannot open here. Write it without asyncio."
_UNKNOWN = "The code raised an exception that cannot be described."


def describe(error: BaseException, sources: Sources) -> str:
    """Return a traceback of the cells' own lines. It has at most a few thousand characters."""
    try:
        name = _type_name(type(error))
        if isinstance(error, SyntaxError) and error.filename in sources:
            return "\n".join((*_syntax_lines(error, sources), f"{name}: {_cut_message(str(error.msg))}"))
        frames = _frames(error.__traceback__, sources)
        head = ["Traceback (most recent call last):", *frames] if frames else []
        message = _cut_message(_message(error))
        advice = [_NO_ASYNCIO] if isinstance(error, PermissionError) and _is_from_asyncio(error.__traceback__) else []
        return "\n".join((*head, f"{name}: {message}" if message else name, *advice))
    except BaseException:  # noqa: BLE001 (the exception's own methods run here)
        return _UNKNOWN


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except BaseException:  # noqa: BLE001
        return "<its message cannot be read>"


def _is_from_asyncio(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if _ASYNCIO in traceback.tb_frame.f_code.co_filename:
            return True
        traceback = traceback.tb_next
    return False


def _frames(traceback: TracebackType | None, sources: Sources) -> list[str]:
    """Return an entry for each frame of a cell, the outermost first. Leave out the middle of many."""
    found = []
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename in sources:
            found.append(traceback)
        traceback = traceback.tb_next
    half = _MAX_FRAMES // 2
    if len(found) <= _MAX_FRAMES:
        return [_frame(one, sources) for one in found]
    first, last = ([_frame(one, sources) for one in some] for some in (found[:half], found[-half:]))
    return [*first, f"  … {len(found) - _MAX_FRAMES} more calls …", *last]


def _frame(traceback: TracebackType, sources: Sources) -> str:
    code, number = traceback.tb_frame.f_code, traceback.tb_lineno
    line = _cut(_line(sources, code.co_filename, number).strip(), _MAX_LINE)
    return f'  File "{code.co_filename}", line {number}, in {_cut(code.co_name, _MAX_LINE)}\n    {line}'


def _syntax_lines(error: SyntaxError, sources: Sources) -> list[str]:
    """Return the place of the error, with a caret below its column where that is near the line's beginning."""
    lines = [f'  File "{error.filename}", line {error.lineno}']
    text = _line(sources, error.filename or "", error.lineno or 0)
    stripped = text.strip()
    if stripped:
        lines.append(f"    {_cut(stripped, _MAX_LINE)}")
        column = (error.offset or 0) - 1 - (len(text) - len(text.lstrip()))
        if 0 <= column < _MAX_LINE:
            lines.append(f"    {' ' * column}^")
    return lines


def _line(sources: Sources, filename: str, number: int) -> str:
    lines = sources[filename]
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"


def _cut_message(text: str) -> str:
    """Return the beginning of a message, without a word that its end would cut: the rest of a secret could not be recognized."""
    if len(text) <= _MAX_MESSAGE:
        return text
    kept = text[: _MAX_MESSAGE + 1]
    while kept and not kept[-1].isspace():
        kept = kept[:-1]
    return f"{kept.rstrip()} … ({len(text) - len(kept)} more characters)"
