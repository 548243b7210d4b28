"""Whether a target is met: the contenders' measurements of the same rounds, compared in pairs.

In a round each contender runs one block of operations. A block has one figure: its median, or its 90th percentile. A
pair is the figures of two contenders in one round. The result is the median of the paired differences with its 95 %
bootstrap interval, which resamples whole rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

MEDIAN = 0.5
P90 = 0.9
# Wider than this part of the peer's figure, an interval says too little: more pairs are needed.
WIDEST = 0.05
_RESAMPLES = 2000

# Seconds of each operation, in the shape (rounds, operations of a block).
Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of differences in seconds, and its 95 % interval."""

    middle: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval, in seconds."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Target:
    """`contender` takes at most `factor` times the time of `peer`, plus `seconds`.

    peer: its figure also decides how narrow the interval must be; with a factor of 0, only that.
    quantile: the quantile of a block's operations.
    """

    contender: str
    peer: str
    factor: float = 1.0
    seconds: float = 0.0
    quantile: float = MEDIAN

    def __str__(self) -> str:
        parts = [] if self.factor == 0 else [self.peer if self.factor == 1 else f"{self.factor:.2f} x {self.peer}"]
        parts += [f"{self.seconds * 1e3:.1f} ms"] if self.seconds else []
        figure = "median" if self.quantile == MEDIAN else f"p{self.quantile * 100:.0f}"
        return f"{self.contender} <= {' + '.join(parts)} ({figure})"


class State(StrEnum):
    """What can be said of a target."""

    MET = "met"
    MET_THOUGH_WIDE = "met, wholly below, though the interval is wide"
    MISSED = "missed"
    OPEN = "open, needs more pairs"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a target.

    excess: the contender's time above the bound; negative where it is below.
    width: the half-width of that interval, relative to the peer's figure.
    """

    target: Target
    pairs: int
    excess: Interval
    width: float

    @property
    def state(self) -> State:
        """Missed: the whole interval is above the bound. Met: it is not, and it is narrow enough."""
        if self.excess.low > 0:
            return State.MISSED
        if self.width <= WIDEST:
            return State.MET
        return State.MET_THOUGH_WIDE if self.excess.high < 0 else State.OPEN

    @property
    def is_decided(self) -> bool:
        """Whether no more pairs are needed: the interval is narrow, or farther from the bound than it is wide."""
        distance = max(self.excess.low, -self.excess.high)
        return self.width <= WIDEST or distance > 2 * self.excess.half_width


def judge(target: Target, samples: Mapping[str, Samples]) -> Verdict:
    """Judge the measurements by a target; only rounds of both contenders count."""
    own, peer = pair(samples[target.contender], samples[target.peer], target.quantile)
    excess = estimate(own - target.factor * peer - target.seconds)
    return Verdict(target, len(own), excess, excess.half_width / float(np.median(peer)))


def pair(own: Samples, peer: Samples, quantile: float = MEDIAN) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The figures of two contenders in the rounds of both."""
    rounds = min(len(own), len(peer))
    return figures(own[:rounds], quantile), figures(peer[:rounds], quantile)


def figures(samples: Samples, quantile: float = MEDIAN) -> NDArray[np.float64]:
    """The figure of each round in seconds."""
    return np.asarray(np.quantile(samples, quantile, axis=1), dtype=np.float64)


def estimate(differences: NDArray[np.float64]) -> Interval:
    """The median of paired differences and its 95 % bootstrap interval, the same at every call."""
    draws = np.random.default_rng(0).integers(len(differences), size=(_RESAMPLES, len(differences)))
    low, high = np.quantile(np.median(differences[draws], axis=1), (0.025, 0.975))
    return Interval(float(np.median(differences)), float(low), float(high))
