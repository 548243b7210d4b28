"""Whose `protos` and `rendezvous` hvdrun's own processes import."""

from pathlib import Path

import pytest

from tests.hvdrun.interpreter import run_python


@pytest.mark.parametrize("words", ["hvdrun --version", "hvdrun.agent", "hvdrun.agent.guardian job/host x"])
def test_no_program_of_ours_imports_the_user_s_packages(words: str, tmp_path: Path) -> None:
    for name in ("protos", "rendezvous"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n", encoding="utf-8")
    run = run_python("-m", *words.split(), cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "not ours" not in run.stderr
    assert "Error" not in run.stderr
