"""Each transcript is a story of the core; the core still has the same effects.

After a change that is meant, `pytest tests/rendezvous/core --rewrite` writes them anew; read the difference.
"""

from pathlib import Path

import pytest

from tests.rendezvous.core.transcript import rerun
from tests.transcripts import check

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_core_reproduces_the_transcript(path: Path, rewrite: bool) -> None:
    check(path, rerun, rewrite=rewrite)


def test_a_wrong_transcript_is_corrected() -> None:
    text = "Two workers are placed.\n\npolicy size=1\nhosts a:1\n  > launch a:1\n"
    assert "launch a:0  (placed)" in rerun(text)
    assert rerun(rerun(text)) == rerun(text)


def test_an_unknown_command_is_no_story() -> None:
    with pytest.raises(ValueError, match="no such command: dance a:0"):
        rerun("A mistake.\n\ndance a:0\n")
