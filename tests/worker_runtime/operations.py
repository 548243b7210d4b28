"""The collectives of the API as one table: their forms, what each case gives, and what each form refuses.

The table knows no framework: a test plays it with torch's tensors or MXNet's arrays. Rank r of three gives the row
[10 r, 10 r + 1, 10 r + 2].
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.worker_runtime.ranks import RankPool

SIZE = 3
SOME = [1, 2]  # the ranks of the process set
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)

Make = Callable[[Any], Any]  # makes a tensor or an array of nested lists
Read = Callable[[Any], Any]  # makes nested lists of it


def list_forms(kind: str, *, in_place: bool, grouped: bool) -> list[str]:
    """The names of a collective's functions: "allreduce", "grouped_allreduce_async_"."""
    return [
        f"{prefix}{kind}{begin}{suffix}"
        for prefix in ("", *["grouped_"] * grouped)
        for begin in ("", "_async")
        for suffix in ("", *["_"] * in_place)
    ]


KINDS = {
    form: kind
    for kind, variants in {
        "allreduce": {"in_place": True, "grouped": True},
        "allgather": {"in_place": False, "grouped": True},
        "broadcast": {"in_place": True, "grouped": False},
        "alltoall": {"in_place": False, "grouped": False},
        "reducescatter": {"in_place": False, "grouped": True},
    }.items()
    for form in list_forms(kind, **variants)
}
FORMS = tuple(KINDS)
NEEDED: dict[str, dict[str, object]] = {"broadcast": {"root_rank": 0}}  # arguments that have no default


class Case(NamedTuple):
    """Arguments, and what they give.

    options: the options of the call, by name.
    expected: the result of each rank.
    in_set: only the ranks of SOME call; the others are refused.
    """

    options: dict[str, object]
    expected: list[list[float]]
    in_set: bool = False


def make_row(rank: int) -> list[float]:
    """What a rank gives."""
    return [10.0 * rank + column for column in range(3)]


def combine_by_adasum(one: list[float], other: list[float]) -> list[float]:
    """Adasum of two vectors, by its definition."""
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    of_one, of_other = (1 - dot / (2 * sum(a * a for a in vector)) for vector in (one, other))
    return [of_one * a + of_other * b for a, b in zip(one, other, strict=True)]


CASES = {
    "allreduce": {
        "default": Case({}, [[10, 11, 12]] * 3),
        "Average": Case({"op": AVERAGE}, [[10, 11, 12]] * 3),
        "Sum": Case({"op": SUM}, [[30, 33, 36]] * 3),
        "Min": Case({"op": MIN}, [[0, 1, 2]] * 3),
        "Max": Case({"op": MAX}, [[20, 21, 22]] * 3),
        "Product": Case({"op": PRODUCT}, [[0, 231, 528]] * 3),
        "factors": Case({"op": MAX, "prescale_factor": -1.0, "postscale_factor": 10.0}, [[0, -10, -20]] * 3),
        "set": Case({"op": SUM}, [[30, 32, 34]] * 3, in_set=True),
        "Adasum": Case({"op": ADASUM}, [combine_by_adasum(make_row(1), make_row(2))] * 3, in_set=True),
    },
    "allgather": {
        "default": Case({}, [[0, 1, 2, 10, 11, 12, 20, 21, 22]] * 3),
        "set": Case({}, [[10, 11, 12, 20, 21, 22]] * 3, in_set=True),
    },
    "broadcast": {
        "root": Case({"root_rank": 1}, [[10, 11, 12]] * 3),
        "set": Case({"root_rank": 2}, [[20, 21, 22]] * 3, in_set=True),
    },
    "reducescatter": {
        "default": Case({}, [[10], [11], [12]]),
        "Average": Case({"op": AVERAGE}, [[10], [11], [12]]),
        "Sum": Case({"op": SUM}, [[30], [33], [36]]),
        "factors": Case({"op": SUM, "prescale_factor": 2.0, "postscale_factor": 10.0}, [[600], [660], [720]]),
        "set": Case({"op": SUM}, [[], [30, 32], [34]], in_set=True),
    },
}


class Refusal(NamedTuple):
    """A call that no rank may make; nothing is sent."""

    values: Any
    options: dict[str, object]
    message: str  # a pattern, behind what names the call


ROW = [1.0, 2.0, 3.0]
_NO_DIMENSION = Refusal(5.0, {}, "a tensor without dimensions")
ONLY_SUMS = "only supports AVERAGE and SUM"
REFUSALS = {
    "allreduce": [Refusal([], {"op": 9}, "op=9 is not supported")],
    "allgather": [_NO_DIMENSION],
    "broadcast": [Refusal(ROW, {"root_rank": root}, f"received invalid root rank {root}") for root in (-1, 9)],
    "alltoall": [
        Refusal(ROW, {"splits": [1, 2, 0]}, "Number of entries in splits"),
        Refusal(ROW, {"splits": [2, 2]}, "greater than the first dimension"),
        Refusal(ROW, {"splits": [1, 1]}, "the rest would be dropped"),  # in silence, by Horovod
        Refusal(ROW, {"splits": [4, -1]}, "negative"),
        Refusal(ROW, {"splits": [1.0, 2.0]}, "give integers"),
        Refusal(ROW, {}, "no multiple of the number of ranks"),
    ],
    "reducescatter": [_NO_DIMENSION, *(Refusal(ROW, {"op": op}, ONLY_SUMS) for op in (ADASUM, MIN, MAX, PRODUCT))],
}


def begin(hvd: Any, form: str, given: Any, **options: object) -> Any:
    """Call a form with one tensor: a result, a list of one, or a handle."""
    return getattr(hvd, form)([given] if form.startswith("grouped_") else given, **options)


def call(hvd: Any, form: str, given: Any, **options: object) -> Any:
    """Call a form with one tensor, and wait: its one result."""
    result = begin(hvd, form, given, **options)
    if "_async" in form:
        result = hvd.synchronize(result)
    return result[0] if form.startswith("grouped_") else result


def play_cases(hvd: Any, form: str, make: Make, read: Read) -> dict[str, object]:
    """As one rank, make a form's calls: what each gives, whether that is what was given, and its first value then."""
    some = hvd.add_process_set(SOME)
    found: dict[str, object] = {}
    for title, case in CASES[KINDS[form]].items():
        given = make(make_row(hvd.rank()))
        options = case.options | ({"process_set": some} if case.in_set else {})
        if case.in_set and not some.included():
            with pytest.raises(ValueError, match="Rank 0 is not a member"):
                begin(hvd, form, given, **options)
        else:
            result = call(hvd, form, given, **options)
            found[title] = [round(value, 3) for value in read(result)], result is given, round(read(given)[0], 3)
    hvd.barrier()  # rank 0 keeps the store by which the set forms its group
    return found


def expect_cases(form: str) -> list[dict[str, object]]:
    """What `play_cases` finds on each rank."""
    found: list[dict[str, object]] = [{} for _ in range(SIZE)]
    for title, case in CASES[KINDS[form]].items():
        for rank in SOME if case.in_set else range(SIZE):
            expected = [round(value, 3) for value in case.expected[rank]]
            is_in_place = form.endswith("_")
            found[rank][title] = expected, is_in_place, (expected if is_in_place else make_row(rank))[0]
    return found


def play_refusals(hvd: Any, form: str, make: Make) -> None:
    """As one rank, make all wrong calls of a form, and then a right one."""
    kind = KINDS[form]
    for refusal in REFUSALS[kind]:
        with pytest.raises(ValueError, match=refusal.message) as caught:
            begin(hvd, form, make(refusal.values), name="x", **NEEDED.get(kind, {}) | refusal.options)
        assert isinstance(caught.value, hvd.HorovodInternalError) == (refusal.message == ONLY_SUMS)  # as in Horovod
    call(hvd, form, make([[1.0], [1.0]]), name="x", **NEEDED.get(kind, {}))


def play_disagreement(hvd: Any, form: str, make: Make) -> None:
    """As one rank of two, call a form with another shape than the other rank's, and then with the same."""
    needed = NEEDED.get(KINDS[form], {})
    with pytest.raises(hvd.HorovodInternalError, match=rf"(?i)(?s)mismatched.*'{form}'|'{form}'.*mismatched"):
        call(hvd, form, make([[1.0] * (hvd.rank() + 1)] * 2), name=form, **needed)
    call(hvd, form, make([[1.0], [1.0]]), name=form, **needed)


def play_average(hvd: Any, make: Make, read: Read) -> list[tuple[float, bool]]:
    """As one rank, give each allreduce `average`: what comes out, and whether the warning names this file."""
    found = []
    for form in list_forms("allreduce", in_place=True, grouped=True):
        for average in (True, False):
            given = make([1.0])
            with pytest.warns(DeprecationWarning, match="average is deprecated") as caught:
                (result,) = read(call(hvd, form, given, average=average))
            with pytest.raises(ValueError, match="The op parameter supersedes average"):
                begin(hvd, form, given, average=average, op=SUM)
            found.append((result, caught[0].filename.endswith("operations.py")))
    return found


class EveryForm:
    """The tests of a package's forms; a subclass names the package, and how to make and read what it communicates.

    error: what each error of the package is, too.
    """

    hvd: Any
    make: Make
    read: Read
    error: type[Exception] = RuntimeError

    def test_the_table_lists_every_form(self) -> None:
        """Each public function that communicates arrays, under its own name."""
        functions = {
            name: value
            for name, value in vars(self.hvd).items()
            if inspect.isfunction(value) and value.__module__ == self.hvd.ops.__name__
        }
        assert sorted(functions.keys() - {"sparse_allreduce_async"}) == sorted(FORMS)
        assert all(name == value.__name__ == value.__qualname__ for name, value in functions.items())

    @pytest.mark.parametrize("form", FORMS)
    def test_a_form_before_init_raises(self, form: str) -> None:
        """And nothing else happens."""
        with pytest.raises(self.hvd.HorovodInternalError, match=r"has not been initialized; use hvd\.init") as caught:
            begin(self.hvd, form, self.make([1.0]), **NEEDED.get(KINDS[form], {}))
        assert isinstance(caught.value, self.error)

    def test_average_warns_of_the_callers_line_and_excludes_op(self, ranks: RankPool) -> None:
        """As in Horovod."""
        found = ranks.run(play_average, self.hvd, self.make, self.read)
        assert found == [[(1.0, True), (2.0, True)] * 8] * 2, found

    @pytest.mark.parametrize("form", [form for form in FORMS if KINDS[form] != "alltoall"])
    def test_a_form_of_a_collective_returns_the_expected_values(self, ranks: RankPool, form: str) -> None:
        """CASES."""
        found = ranks.run(play_cases, self.hvd, form, self.make, self.read, size=SIZE)
        expected = expect_cases(form)
        assert found == expected, found

    @pytest.mark.parametrize("form", FORMS)
    def test_a_form_refuses_wrong_arguments_and_continues(self, ranks: RankPool, form: str) -> None:
        """REFUSALS."""
        ranks.run(play_refusals, self.hvd, form, self.make)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_form_names_a_disagreement_of_the_ranks_and_continues(self, ranks: RankPool, form: str) -> None:
        """Of their shapes."""
        ranks.run(play_disagreement, self.hvd, form, self.make)
