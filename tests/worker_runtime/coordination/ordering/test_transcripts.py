"""Each transcript tells a story of the sequencer's rules; they tell it still the same way.

After a change that is meant, `pytest tests/worker_runtime/coordination/ordering --rewrite` writes them anew; read the
difference.
"""

from pathlib import Path

import pytest

from tests.rendezvous.core.stories import check
from tests.worker_runtime.coordination.ordering.transcript import rerun

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_told(path: Path, rewrite: bool) -> None:
    check(path, rerun, rewrite=rewrite)
