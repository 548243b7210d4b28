"""Each transcript is a story of the sequencer's rules; they still give the same responses.

After a change that is meant, `pytest tests/worker_runtime/coordination/ordering --rewrite` writes them anew; read the
difference.
"""

from pathlib import Path

import pytest

from tests.transcripts import check
from tests.worker_runtime.coordination.ordering.transcript import rerun

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_rules_reproduce_the_transcript(path: Path, rewrite: bool) -> None:
    check(path, rerun, rewrite=rewrite)
