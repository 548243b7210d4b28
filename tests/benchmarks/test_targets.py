"""When a target counts as met, by figures made up for it."""

import numpy as np
import pytest

from benchmarks.targets import P90, Samples, State, Target, estimate, judge, pair

PEER = Target("ours", "theirs")


def make(middle: float, spread: float, rounds: int = 40, operations: int = 1) -> Samples:
    """Rounds whose figures lie evenly within `spread` of `middle`, smallest first, and alike within a round."""
    steps = np.linspace(-spread, spread, rounds)
    return np.repeat((middle + steps)[:, np.newaxis], operations, axis=1)


@pytest.mark.parametrize(
    ("own", "state", "is_decided"),
    [
        (make(0.100, 0.001), State.MET, True),
        (make(0.080, 0.001), State.MET, True),
        (make(0.103, 0.001), State.MISSED, True),
        (make(0.100, 0.050), State.OPEN, False),
        (make(0.050, 0.040), State.MET_THOUGH_WIDE, True),
        (make(0.250, 0.060), State.MISSED, True),
        (make(0.130, 0.060), State.MISSED, False),
    ],
    ids=["equal", "faster", "slower", "too wide", "far below", "far above", "above and wide"],
)
def test_the_interval_of_the_difference_decides_a_target(own: Samples, state: State, is_decided: bool) -> None:
    verdict = judge(PEER, {"ours": own, "theirs": make(0.100, 0.0)})
    assert (verdict.state, verdict.is_decided) == (state, is_decided)


def test_a_target_may_be_a_part_of_the_peer_s_time() -> None:
    samples = {"ours": make(0.08, 0.0), "theirs": make(0.1, 0.0)}
    assert judge(Target("ours", "theirs", 0.75), samples).state is State.MISSED
    assert judge(Target("ours", "theirs", 0.85), samples).state is State.MET


def test_a_target_may_be_a_number_of_seconds() -> None:
    samples = {"ours": make(0.08, 0.0), "theirs": make(0.1, 0.0)}
    assert judge(Target("ours", "theirs", 0.0, 0.07), samples).excess.middle == pytest.approx(0.01)
    assert judge(Target("ours", "theirs", 0.0, 0.09), samples).state is State.MET


def test_noise_that_hits_both_of_a_pair_does_not_widen_the_interval() -> None:
    noise = make(0.0, 0.5)
    verdict = judge(PEER, {"ours": noise + 1.01, "theirs": noise + 1.0})
    assert verdict.width < 1e-9
    assert verdict.state is State.MISSED


def test_the_figure_of_a_round_is_the_quantile_of_its_operations() -> None:
    block = np.array([[1.0] * 8 + [5.0] * 2])
    assert pair(block, block)[0].tolist() == [1.0]
    assert pair(block, block, P90)[0].tolist() == [5.0]


def test_only_rounds_in_which_both_took_part_are_pairs() -> None:
    assert judge(PEER, {"ours": make(0.1, 0.0, 60), "theirs": make(0.1, 0.0, 20)}).pairs == 20


def test_the_interval_is_the_same_at_every_call_and_holds_the_median() -> None:
    differences = np.random.default_rng(3).normal(2.0, 1.0, 100)
    interval = estimate(differences)
    assert interval == estimate(differences)
    assert interval.low < np.median(differences) < interval.high
    assert interval.half_width == pytest.approx(1.96 * 1.2533 / 10, rel=0.4)


def test_a_target_reads_as_a_claim() -> None:
    assert str(PEER) == "ours <= theirs (median)"
    assert str(Target("ours", "theirs", 1.05)) == "ours <= 1.05 x theirs (median)"
    assert str(Target("ours", "theirs", 0.0, 0.6e-3, P90)) == "ours <= 0.6 ms (p90)"
