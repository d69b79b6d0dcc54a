"""What is said about a session that would not work."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.core.errors import BadSetting
from headrace.spark.session.needs import check_python
from headrace.spark.session.session import first_line


def test_workers_of_another_python_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    with pytest.raises(BadSetting, match=r"would run .*python3, .* set PYSPARK_PYTHON="):
        check_python(str(other))
    with pytest.raises(BadSetting, match=r"would run no-such-python"):
        check_python("no-such-python")


def test_another_name_of_this_python_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    check_python("python3")
    check_python(sys.executable)


def test_the_last_line_of_a_workers_trace_is_shown() -> None:
    trace = (
        "An exception was thrown from the Python worker:\n"
        "Traceback (most recent call last):\n"
        '  File "a.py", line 1, in <module>\n    import x\n'
        "ModuleNotFoundError: No module named 'x'\n\n\tat org.apache.spark.api\n"
    )
    assert first_line(Exception(trace)) == "ModuleNotFoundError: No module named 'x'"
    assert first_line(Exception("one\ntwo")) == "one"
    assert first_line(Exception("")) == "Exception"
