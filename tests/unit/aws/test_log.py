"""The log's lines, and a log that nobody reads any more."""

import io
import json

import pytest

from spass.aws.log import write_line


class Gone(io.StringIO):
    """The output of a terminal that was closed."""

    def write(self, _: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    write_line({"event": "swept", "words": "two\nlines"})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"event": "swept", "words": "two\nlines"}


def test_work_goes_on_where_nobody_reads_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Gone())
    write_line({"event": "swept"})
