"""Random trainings: what a program does with its optimizers, in words that every rank and one process understand."""

from dataclasses import dataclass, replace
from itertools import chain

from hypothesis import strategies as st

# The blocks of the model that a loss may use, and their parameters.
BLOCKS = {"hidden": ("weight", "offset", "out"), "skip": ("skip",), "bias": ("bias",)}
PARAMETERS = tuple(name for names in BLOCKS.values() for name in names)
OPS = ("Average", "Average", "Sum", "Min", "Max", "Product", "Adasum")
KINDS = ("SGD", "momentum", "AdamW", "RMSprop", "Adagrad", "LBFGS")
# With these, an error of the gradients becomes no larger an error of the parameters than it is.
STEADY_OPS = OPS[:5]
STEADY_KINDS = KINDS[:2]
STEPS = ("plain", "scaler", "clip and scaler", "synchronize and skip", "synchronize and step", "synchronize", "fails")
WAYS = ("eager", "aot_eager", "inductor")
PLACES = ("unscaled", "clipped", "synchronized")
AGAIN = ("Sum", "Product")  # with these, what is reduced twice is another thing than what is reduced once
NORMS = ("float32", "bfloat16")
GIVEN = ("tensor", "float", "NumPy's", "none")
ALL = -1
NEWEST = -1
_MOST_OPERATIONS = 14


@dataclass(frozen=True)
class Wrap:
    """A new optimizer is made distributed; whatever of its parameters another one has had is its own from now on."""

    kind: str = "SGD"
    parameters: tuple[str, ...] = PARAMETERS
    passes: int = 1
    groups: int = 0
    predivide: float = 1.0  # of an average
    op: str = "Average"
    is_compressed: bool = False  # each gradient separately, without a loss


@dataclass(frozen=True)
class Backward:
    """A backward pass of each rank.

    batch: chooses the data.
    uses: of each rank, the blocks that its loss uses; without any it makes no backward pass.
    is_scaled: the gradient scaler scales the loss.
    infinite: the rank that finds an infinity, if there is one.
    fails: all ranks raise in the middle of it, and catch that.
    way: how the model is compiled.
    """

    batch: int
    uses: tuple[frozenset[str], ...]
    is_scaled: bool = False
    infinite: int | None = None
    fails: bool = False
    way: str = "eager"


@dataclass(frozen=True)
class Clear:
    """Gradients are cleared: those of one optimizer, or of the model where it is None; where it is ALL, all of them."""

    optimizer: int | None
    to_none: bool = True


@dataclass(frozen=True)
class Step:
    """An optimizer steps, in one of STEPS.

    recovers: the job recovers at this one of PLACES, where the way comes to it.
    early: if the step is revoked when it is to be completed, the ranks that hear it when the replicas are compared.
    """

    optimizer: int
    way: str = "plain"
    recovers: str = ""
    early: frozenset[int] | None = None


@dataclass(frozen=True)
class Closure:
    """An optimizer steps with a closure, which fails on some ranks; these ranks and the others catch that.

    gives: what the closure returns, one of GIVEN.
    """

    optimizer: int
    batch: int
    uses: tuple[frozenset[str], ...]
    fails_on: frozenset[int] = frozenset()
    gives: str = "tensor"


@dataclass(frozen=True)
class Write:
    """Each rank writes a gradient by hand, another one on each."""

    parameter: str
    batch: int


@dataclass(frozen=True)
class Freeze:
    """A parameter is frozen, or unfrozen where it is."""

    parameter: str


@dataclass(frozen=True)
class Load:
    """An optimizer loads its own state."""

    optimizer: int


@dataclass(frozen=True)
class Recover:
    """The job recovers."""


Operation = Wrap | Backward | Clear | Step | Closure | Write | Freeze | Load | Recover
# A step of the newest optimizer, in which the job recovers after the gradients were reduced.
AMID: dict[str, tuple[Operation, ...]] = {
    "after unscale_()": (Step(NEWEST, "clip and scaler", "unscaled"),),
    "after clipping": (Step(NEWEST, "clip and scaler", "clipped"),),
    "between synchronize() and unscale_()": (Step(NEWEST, "synchronize"), Recover(), Step(NEWEST, "clip and scaler")),
}


@dataclass(frozen=True)
class Program:
    """What all ranks do alike.

    check: each how many steps the replicas are compared; 0 for never.
    clears_by_model: not by the optimizers, where it clears gradients after an exception and between plain steps.
    is_elastic: the job may recover.
    widened: parameters in bfloat16 with gradients in float64.
    norm: the dtype in which all ranks' batches are normalized; "" for no norm.
    """

    size: int
    check: int
    clears_by_model: bool
    operations: tuple[Operation, ...]
    is_elastic: bool = False
    widened: frozenset[str] = frozenset()
    norm: str = ""


@st.composite
def programs(draw: st.DrawFn, ways: tuple[str, ...] = WAYS[:2], norm_ways: tuple[str, ...] = WAYS[:1]) -> Program:
    """Programs of two or three ranks; they shrink to few plain operations.

    Args:
        draw: what Hypothesis chooses.
        ways: how models may be compiled.
        norm_ways: how models with a norm may be.
    """
    size = draw(st.sampled_from((2, 3)))
    is_elastic = draw(st.booleans())
    norm = draw(st.sampled_from(("", "", "", *NORMS)))
    widened = frozenset() if norm else draw(st.just(frozenset()) | st.frozensets(st.sampled_from(PARAMETERS)))
    ways = norm_ways if norm else ways[:1] if widened else ways
    wrap = _wraps(STEADY_KINDS if norm else KINDS, STEADY_OPS if norm else OPS[:-1] if widened else OPS)
    chosen = _operations(size, wrap, ways, is_elastic=is_elastic, has_norm=bool(norm))
    some = st.lists(chosen, min_size=1, max_size=_MOST_OPERATIONS)
    operations = (draw(wrap), *chain.from_iterable(draw(some)))
    if is_elastic:
        op = st.sampled_from(AGAIN[: 1 + (not norm)])
        recovered = st.builds(_recover_amid, wrap, op, _uses(size, has_norm=bool(norm)), st.sampled_from([*AMID]))
        operations += draw(st.just(()) | recovered)
    check = draw(st.sampled_from((1, 0, 2)))
    return Program(size, check, draw(st.booleans()), operations, is_elastic, widened, norm)


def _wraps(kinds: tuple[str, ...], ops: tuple[str, ...]) -> st.SearchStrategy[Wrap]:
    return st.builds(
        Wrap,
        st.sampled_from(kinds),
        st.just(PARAMETERS) | st.lists(st.sampled_from(PARAMETERS), min_size=1, unique=True).map(tuple),
        st.sampled_from((1, 1, 2)),
        st.sampled_from((0, 2, 5)),
        st.sampled_from((1.0, 2.0)),
        st.sampled_from(ops),
        st.integers(0, 3).map(lambda number: number == 3),
    ).map(lambda wrap: replace(wrap, parameters=PARAMETERS) if wrap.kind == "LBFGS" else wrap)


def _operations(
    size: int, wrap: st.SearchStrategy[Wrap], ways: tuple[str, ...], *, is_elastic: bool, has_norm: bool
) -> st.SearchStrategy[tuple[Operation, ...]]:
    """One operation, or some that belong together."""
    uses = _uses(size, has_norm=has_norm)
    batch = st.integers(0, 9)
    optimizer = st.integers(0, 2)
    parameter = st.sampled_from(PARAMETERS)
    member = st.integers(0, size - 1)
    fails_on = st.just(frozenset()) | st.frozensets(member, max_size=1)
    backward = st.builds(
        Backward,
        batch,
        uses,
        st.booleans(),
        st.none() | member,
        st.integers(0, 7).map(lambda number: number == 7 and not has_norm),
        st.sampled_from((*ways[:1] * 5, *ways)),
    )
    step = st.builds(
        Step,
        optimizer,
        st.sampled_from(STEPS),
        st.sampled_from(PLACES) | st.just("") if is_elastic else st.just(""),
        st.none() | st.frozensets(member) if is_elastic else st.none(),
    )
    closure = st.builds(Closure, optimizer, batch, uses, fails_on, st.sampled_from(GIVEN))
    others = (
        st.builds(Clear, st.none() | optimizer, st.booleans()),
        closure,
        wrap,
        st.builds(Write, parameter, batch),
        st.builds(Freeze, parameter),
        st.builds(Load, optimizer),
        *[st.just(Recover())] * is_elastic,
    )
    one = st.one_of(backward, backward, step, step, *others).map(lambda operation: (operation,))
    return one | one | st.builds(_train, st.builds(Step, optimizer) | step, st.integers(1, 3), uses)


def _uses(size: int, *, has_norm: bool) -> st.SearchStrategy[tuple[frozenset[str], ...]]:
    block = st.frozensets(st.sampled_from(tuple(BLOCKS)))
    return st.just((frozenset(BLOCKS),) * size) | st.tuples(*[block] * size).map(_align if has_norm else tuple)


def _align(uses: tuple[frozenset[str], ...]) -> tuple[frozenset[str], ...]:
    """The ranks meet in the norm, all or none."""
    return tuple(each | {"hidden"} for each in uses) if any("hidden" in each for each in uses) else uses


def _train(step: Step, count: int, uses: tuple[frozenset[str], ...]) -> tuple[Operation, ...]:
    """Some steps of one kind: as many as bring an optimizer to what it does for long."""
    is_scaled = "scaler" in step.way
    return tuple(
        operation for batch in range(count) for operation in (Clear(ALL), Backward(batch, uses, is_scaled), step)
    )


def _recover_amid(wrap: Wrap, op: str, uses: tuple[frozenset[str], ...], place: str) -> tuple[Operation, ...]:
    """A step of a new optimizer, in which the job recovers after the gradients were reduced."""
    wrap = replace(wrap, kind="SGD" if wrap.kind == "LBFGS" else wrap.kind, op=op)
    return (Clear(ALL), wrap, *(Backward(0, uses, is_scaled=True),) * wrap.passes, *AMID[place])
