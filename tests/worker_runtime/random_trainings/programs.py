"""Random trainings: what a program does with its optimizers, in words that every rank and one process understand."""

from dataclasses import dataclass
from itertools import chain

from hypothesis import strategies as st

# The blocks of the model that a loss may use, and their parameters.
BLOCKS = {"hidden": ("weight", "offset", "out"), "skip": ("skip",), "bias": ("bias",)}
PARAMETERS = tuple(name for names in BLOCKS.values() for name in names)
OPS = ("Average", "Average", "Sum", "Min", "Max", "Product")
KINDS = ("SGD", "momentum", "AdamW", "RMSprop", "Adagrad")
STEPS = ("plain", "scaler", "clip and scaler", "synchronize and skip", "synchronize and step", "synchronize", "fails")
WAYS = ("eager", "aot_eager", "inductor")
GIVEN = ("tensor", "float", "NumPy's", "none")
ALL = -1
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


@dataclass(frozen=True)
class Backward:
    """A backward pass of each rank.

    batch: chooses the data.
    uses: of each rank, the blocks that its loss uses; without any it makes no backward pass.
    is_scaled: by the gradient scaler.
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
    """An optimizer steps, in one of STEPS."""

    optimizer: int
    way: str = "plain"


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


Operation = Wrap | Backward | Clear | Step | Closure | Write | Freeze | Load


@dataclass(frozen=True)
class Program:
    """What all ranks do alike.

    check: each how many steps the replicas are compared; 0 for never.
    clears_by_model: not by the optimizers, where it clears gradients after an exception and between plain steps.
    """

    size: int
    check: int
    clears_by_model: bool
    operations: tuple[Operation, ...]


@st.composite
def programs(draw: st.DrawFn, ways: tuple[str, ...] = WAYS[:2]) -> Program:
    """Programs of two or three ranks; they shrink to few plain operations.

    Args:
        draw: what Hypothesis chooses.
        ways: how models may be compiled.
    """
    size = draw(st.sampled_from((2, 3)))
    block = st.frozensets(st.sampled_from(tuple(BLOCKS)))
    uses = st.just((frozenset(BLOCKS),) * size) | st.tuples(*[block] * size)
    batch = st.integers(0, 9)
    optimizer = st.integers(0, 2)
    parameter = st.sampled_from(PARAMETERS)
    fails_on = st.just(frozenset()) | st.frozensets(st.integers(0, size - 1), max_size=1)
    wrap = st.builds(
        Wrap,
        st.sampled_from(KINDS),
        st.just(PARAMETERS) | st.lists(parameter, min_size=1, unique=True).map(tuple),
        st.sampled_from((1, 1, 2)),
        st.sampled_from((0, 2, 5)),
        st.sampled_from((1.0, 2.0)),
        st.sampled_from(OPS),
    )
    backward = st.builds(
        Backward,
        batch,
        uses,
        st.booleans(),
        st.none() | st.integers(0, size - 1),
        st.integers(0, 7).map(lambda number: number == 7),
        st.sampled_from((*ways[:1] * 5, *ways)),
    )
    operations = st.one_of(
        backward,
        backward,
        st.builds(Step, optimizer, st.sampled_from(STEPS)),
        st.builds(Step, optimizer, st.sampled_from(STEPS)),
        st.builds(Clear, st.none() | optimizer, st.booleans()),
        st.builds(Closure, optimizer, batch, uses, fails_on, st.sampled_from(GIVEN)),
        wrap,
        st.builds(Write, parameter, batch),
        st.builds(Freeze, parameter),
        st.builds(Load, optimizer),
    ).map(lambda operation: (operation,))
    trained = st.builds(_train, optimizer, st.integers(1, 3), uses)
    some = st.lists(operations | operations | trained, min_size=1, max_size=_MOST_OPERATIONS)
    return Program(
        size, draw(st.sampled_from((1, 0, 2))), draw(st.booleans()), (draw(wrap), *chain.from_iterable(draw(some)))
    )


def _train(optimizer: int, count: int, uses: tuple[frozenset[str], ...]) -> tuple[Operation, ...]:
    """Some plain steps: as many as bring an optimizer to what it does for long."""
    return tuple(
        operation for batch in range(count) for operation in (Clear(ALL), Backward(batch, uses), Step(optimizer))
    )
