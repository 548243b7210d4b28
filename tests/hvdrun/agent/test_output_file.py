"""What a child writes can be read while it lives, and leaves nothing."""

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from hvdrun.agent.output_file import OutputFile


@pytest.mark.parametrize(("written", "last"), [("", ""), ("one\ntwo\n\n", "two"), ("x" * 5000 + "\nlast", "last")])
def test_the_last_line_is_read_and_no_file_is_left(
    written: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(OutputFile()) as file:
        subprocess.run(["printf", "%s", written], stdout=file.fileno(), check=True)
        assert file.read_last_line() == last
        assert list(tmp_path.iterdir()) == []
