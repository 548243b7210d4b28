"""Random tests whose ranks do not agree: deadlocks, branches that one rank takes alone, and mismatches."""

from dataclasses import dataclass
from random import Random

SIZE = 2
_OPERATIONS = (
    "hvd.allreduce(torch.ones({n}), name={name!r})",
    "hvd.allgather(torch.ones({n}), name={name!r})",
    "hvd.broadcast(torch.ones({n}), 0, name={name!r})",
    "hvd.alltoall(torch.ones({even}), name={name!r})",
    "hvd.grouped_allreduce([torch.ones({n}), torch.ones(1)], name={name!r})",
    "hvd.synchronize(hvd.allreduce_async(torch.ones({n}), name={name!r}))",
    "hvd.broadcast_object([1] * {n}, 0, name={name!r})",
    "hvd.allgather_object([1] * {n}, name={name!r})",
    "hvd.barrier()",
)
# What differs on the two ranks under one name.
_MISMATCHES = (
    ("hvd.allreduce(torch.ones(2), name='x')", "hvd.allreduce(torch.ones(3), name='x')"),
    ("hvd.allreduce(torch.ones(2), name='x')", "hvd.allreduce(torch.ones(2).double(), name='x')"),
    ("hvd.allreduce(torch.ones(2), name='x')", "hvd.allreduce(torch.ones(2), op=hvd.Max, name='x')"),
    ("hvd.allreduce(torch.ones(2), name='x')", "hvd.allgather(torch.ones(2), name='x')"),
    ("hvd.broadcast(torch.ones(2), 0, name='x')", "hvd.broadcast(torch.ones(2), 1, name='x')"),
    ("hvd.allgather(torch.ones(2, 2), name='x')", "hvd.allgather(torch.ones(2, 3), name='x')"),
)


@dataclass(frozen=True, slots=True)
class WrongProgram:
    """A test function, and by rank the line, counted from that of its `def`, at which each rank stops."""

    text: str
    lines: tuple[int, int]


def make_program(seed: int) -> WrongProgram:
    """The program of a seed; one seed after the other gives each kind in turn."""
    random = Random(seed)  # noqa: S311 - test data
    kind = ("branch", "deadlock", "mismatch")[seed % 3]
    lines = [f"def test_{seed}():", "    hvd.init()"]
    lines += [f"    {make_operation(random, f'before {number}')}" for number in range(random.randrange(4))]
    alone = random.randrange(SIZE)
    first, second = make_branches(random, kind)
    lines.append(f"    if hvd.rank() == {alone}:")
    places = {alone: len(lines) + 1}
    lines += [f"        {line}" for line in first]
    lines.append("    else:")
    places[1 - alone] = len(lines) + 1
    lines += [f"        {line}" for line in second]
    return WrongProgram("\n".join(lines), (places[0], places[1]))


def make_branches(random: Random, kind: str) -> tuple[list[str], list[str]]:
    """What each rank does alone; each stops in its first line."""
    if kind == "branch":
        return [make_operation(random, "alone")], [random.choice(["done = True", "return"])]
    if kind == "mismatch":
        first, second = random.choice(_MISMATCHES)
        return [first], [second]
    some = random.choice(_OPERATIONS[:-1]).format(n=2, even=2, name="some")
    other = random.choice(_OPERATIONS[:-1]).format(n=2, even=2, name="other")
    return [some, other], [other, some]


def make_operation(random: Random, name: str) -> str:
    """A call of a collective."""
    count = random.randrange(1, 5)
    return random.choice(_OPERATIONS).format(n=count, even=2 * count, name=name)
