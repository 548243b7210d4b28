"""Timelines are refused in so many words."""

import pytest

from tests.worker_runtime.ranks import RankPool
from worker_runtime.timeline import start_timeline, stop_timeline


def test_a_timeline_is_refused_and_to_stop_none_is_nothing(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(NotImplementedError, match=r"start_timeline\('t\.json'\): timelines are not served yet"):
            start_timeline("t.json", mark_cycles=True)
        stop_timeline()

    ranks.run(body, size=1)


@pytest.mark.parametrize("call", [lambda: start_timeline("t.json"), stop_timeline], ids=["start", "stop"])
def test_before_init_that_is_said_first(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match="has not been initialized"):
        call()
