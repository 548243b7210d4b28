"""How the ranks' values become one."""

from typing import NamedTuple

from worker_runtime.core.questions import Reduction


class Combination(NamedTuple):
    """A reduction, and factors before and after it: postscale * reduce(prescale * x), and for the average 1/size.

    Integers are scaled in float64 and truncated toward zero, half precision in single. (A tuple, since it is a part of
    the key of every call's plan, and a tuple's hash is made quickly.)
    """

    reduction: Reduction = Reduction.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0


AVERAGE = Combination()
SUM = Combination(Reduction.SUM)
