"""Allreduce under Horovod's arguments; what it computes is tested with the collectives."""

from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


class Halving:
    """A compressor of a program's own: an object with methods."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
        """Half of it."""
        return tensor / 2, "halved"

    def decompress(self, tensor: torch.Tensor, context: str) -> torch.Tensor:
        """Twice of it."""
        assert context == "halved"
        return tensor * 2


FORMS = {
    "allreduce": hvd.allreduce,
    "allreduce_": hvd.allreduce_,
    "allreduce_async": lambda x, **more: hvd.synchronize(hvd.allreduce_async(x, **more)),
    "allreduce_async_": lambda x, **more: hvd.synchronize(hvd.allreduce_async_(x, **more)),
    "grouped_allreduce": lambda x, **more: hvd.grouped_allreduce([x], **more)[0],
    "grouped_allreduce_": lambda x, **more: hvd.grouped_allreduce_([x], **more)[0],
    "grouped_allreduce_async": lambda x, **more: hvd.synchronize(hvd.grouped_allreduce_async([x], **more))[0],
    "grouped_allreduce_async_": lambda x, **more: hvd.synchronize(hvd.grouped_allreduce_async_([x], **more))[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_take_all_arguments(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([0, 1])
        results = {}
        for name, op in {"Average": 0, "Sum": 1, "Min": 3, "Max": 4, "Product": 5}.items():
            x = torch.tensor([1.0, 2.0]) * (hvd.rank() + 1)
            results[name] = reduce(x, op=op, name=name).tolist()
        default = reduce(torch.tensor([float(hvd.rank())])).tolist()
        scaled = reduce(torch.tensor([1.0, 2.0]), op=hvd.Sum, prescale_factor=2.0, postscale_factor=10.0).tolist()
        among_two = reduce(torch.ones(1), op=hvd.Sum, process_set=some).item() if some.included() else None
        x = torch.ones(2)
        is_in_place = reduce(x) is x
        return results, default, scaled, among_two, is_in_place

    for rank, outcome in enumerate(ranks.run(body, size=3)):
        results, default, scaled, among_two, is_in_place = outcome
        assert results == {
            "Average": [2.0, 4.0],
            "Sum": [6.0, 12.0],
            "Min": [1.0, 2.0],
            "Max": [3.0, 6.0],
            "Product": [6.0, 48.0],
        }
        assert (default, scaled) == ([1.0], [60.0, 120.0])
        assert among_two == (2.0 if rank < 2 else None)
        assert is_in_place == form.endswith("_")


@pytest.mark.parametrize("form", FORMS)
def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        x = torch.zeros(2)
        x[hvd.rank()] = 3.0
        return reduce(x, op=hvd.Adasum).tolist(), reduce(torch.ones(2), op=hvd.Adasum).tolist()

    assert ranks.run(body) == [([3.0, 3.0], [1.0, 1.0])] * 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("average", "expected"), [(True, 1.0), (False, 2.0)])
def test_the_old_argument_works_warns_of_the_callers_line_and_excludes_op(
    ranks: RankPool,
    form: str,
    average: bool,  # noqa: FBT001 - Horovod's argument
    expected: float,
) -> None:
    reduce = FORMS[form]

    def body() -> object:
        with pytest.warns(DeprecationWarning, match="average is deprecated") as caught:
            result = reduce(torch.ones(1), average=average).item()
        with pytest.raises(ValueError, match="The op parameter supersedes average"):
            reduce(torch.ones(1), average=average, op=hvd.Sum)
        return result, caught[0].filename.endswith("test_allreduces.py")

    assert ranks.run(body) == [(expected, True)] * 2


@pytest.mark.parametrize("form", ["allreduce", "grouped_allreduce"])
@pytest.mark.parametrize("which", ["none", "fp16", "bf16", "own"])
def test_compressors_of_any_kind_are_applied(ranks: RankPool, form: str, which: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        compressor = Halving() if which == "own" else getattr(hvd.Compression, which)
        result = reduce(torch.tensor([1.0, 3.0 + hvd.rank()]), op=hvd.Sum, compression=compressor)
        whole = reduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum) if which != "own" else torch.tensor([3])
        return result.dtype == torch.float32, result.tolist(), whole.dtype == torch.int64, whole.tolist()

    assert ranks.run(body) == [(True, [2.0, 7.0], True, [3])] * 2


def test_a_group_is_one_operation_of_several_shapes_and_dtypes(ranks: RankPool) -> None:
    kinds = {torch.float32: 0, torch.int64: 1, torch.bfloat16: 3}

    def body() -> object:
        tensors = [torch.full((size,), hvd.rank() + 1, dtype=kind) for kind, size in kinds.items()]
        results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
        return [(each.dtype == kind, each.tolist()) for each, kind in zip(results, kinds, strict=True)]

    assert ranks.run(body) == [[(True, []), (True, [3]), (True, [3.0] * 3)]] * 2


def test_names_reach_the_messages(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match=r"^allreduce 'r'"):
            hvd.allreduce_(torch.ones(1, dtype=torch.bool), name="r")
        with pytest.raises(ValueError, match=r"^grouped_allreduce 'g'"):
            hvd.grouped_allreduce([], name="g")
        with pytest.raises(ValueError, match="op=9 is not supported"):
            hvd.allreduce(torch.ones(1), op=9)

    ranks.run(body, size=1)


def test_a_group_whose_name_is_in_flight_leaves_nothing_behind(ranks: RankPool) -> None:
    """In Horovod a duplicate in the middle of a group leaves the members before it queued for ever."""

    def body() -> object:
        handle = hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], name="g")
        if hvd.rank() == 0:
            with pytest.raises(ValueError, match="same name"):
                hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], name="g")
        hvd.barrier()
        first = [each.tolist() for each in hvd.synchronize(handle)]
        if hvd.rank() == 1:
            with pytest.raises(hvd.HorovodInternalError, match="given up on rank 0"):
                hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], name="g")
        return first, [each.tolist() for each in hvd.grouped_allreduce([torch.ones(1)], name="g")]

    assert ranks.run(body) == [([[1.0], [1.0, 1.0]], [[1.0]])] * 2


def test_an_in_place_operation_works_on_a_parameter_and_on_any_view(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
        hvd.allreduce_(parameter, op=hvd.Sum)
        whole = torch.zeros(2, 4)
        hvd.allreduce_(whole[:, ::2].add_(1.0), op=hvd.Sum)
        return parameter.tolist(), parameter.requires_grad, whole.tolist()

    assert ranks.run(body) == [([1.0, 1.0], True, [[2.0, 0.0, 2.0, 0.0]] * 2)] * 2


def test_the_average_of_integers_is_exact_for_sizes_where_horovods_is_off_by_one(ranks: RankPool) -> None:
    """Horovod multiplies by 1/49 and truncates: 49 * (1/49) gives 0."""
    assert int(49 * (1 / 49)) == 0

    def body() -> object:
        return hvd.allreduce(torch.tensor([1, -1, 3 * (hvd.rank() + 1)])).tolist()

    assert ranks.run(body, size=3) == [[1, -1, 6]] * 3


def test_before_init_it_is_an_error() -> None:
    for reduce in FORMS.values():
        with pytest.raises(hvd.HorovodInternalError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."):
            reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("dtype", {"dtype": torch.float64}),
        ("shape", {"rows": 3}),
        ("op", {"op": 4}),
        ("prescale", {"prescale_factor": 2.0}),
        ("postscale", {"postscale_factor": 2.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ranks_that_disagree_are_told_so_and_go_on(ranks: RankPool, what: str, other: dict[str, object]) -> None:
    del what

    def body() -> object:
        mine = {"rows": 2, "dtype": torch.float32, "op": 1} | (other if hvd.rank() else {})
        tensor = torch.ones(mine.pop("rows"), dtype=mine.pop("dtype"))
        with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched"):
            hvd.allreduce(tensor, name="x", **mine)
        return hvd.allreduce(torch.ones(1), name="x", op=hvd.Sum).item()

    assert ranks.run(body) == [2.0, 2.0]


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize("order", ["alike", "reversed on rank 0", "synchronized from the last"])
def test_a_burst_of_any_tensors_gives_each_its_own_result(ranks: RankPool, order: str, *, in_place: bool) -> None:
    """Small ones of a burst are packed and unpacked together; each is as if it had been alone."""

    def body() -> object:
        dtypes = [torch.float32, torch.float32, torch.float64, torch.float16, torch.int32]
        reduce = hvd.allreduce_async_ if in_place else hvd.allreduce_async
        handles, results = {}, {}
        numbers = range(1, 700) if order == "alike" or hvd.rank() else range(699, 0, -1)
        for number in numbers:
            dtype = dtypes[number % len(dtypes)] if number % 7 else torch.float32
            x = torch.full(((), (number,), (2, number % 5))[number % 3], number * (hvd.rank() + 1), dtype=dtype)
            op = hvd.Average if number % 50 < 40 else hvd.Sum
            handles[number] = (
                hvd.allreduce_async(x.view(-1)[:0].clone(), name=f"empty.{number}"),
                reduce(x, op=op, name=str(number)),
            )
        for number in reversed(numbers) if order == "synchronized from the last" else numbers:
            empty, handle = handles[number]
            results[number] = hvd.synchronize(handle)
            assert hvd.synchronize(empty).shape == (0,)
        return results

    first, second = ranks.run(body)
    for number, result in first.items():
        factor = 1.5 if number % 50 < 40 else 3
        exact = number * factor if result.dtype.is_floating_point else int(number * factor)
        assert torch.equal(result, torch.full_like(result, exact)), number
        assert torch.equal(second[number], result)


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
def test_a_burst_that_is_answered_while_it_is_waited_for_is_finished_once(ranks: RankPool, *, in_place: bool) -> None:
    def body() -> object:
        reduce = hvd.allreduce_async_ if in_place else hvd.allreduce_async
        results = []
        for _ in range(50):
            handles = [reduce(torch.tensor([1.0 + hvd.rank()]), name=str(number)) for number in range(3)]
            results += [hvd.synchronize(handle).item() for handle in handles]
        return results

    assert ranks.run(body) == [[1.5] * 150] * 2


@pytest.mark.parametrize("size", [3, 100_000], ids=["in the question", "in the group"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_autograd_notices_what_is_written_in_place(ranks: RankPool, size: int, *, is_plain: bool) -> None:
    def body() -> object:
        calls: dict[str, Callable[[torch.Tensor], object]] = {
            "allreduce_": hvd.allreduce_,
            "allreduce_async_": lambda y: hvd.synchronize(hvd.allreduce_async_(y)),
            "grouped_allreduce_": lambda y: hvd.grouped_allreduce_([y]),
            "grouped_allreduce_async_": lambda y: hvd.synchronize(hvd.grouped_allreduce_async_([y])),
            "broadcast_": lambda y: hvd.broadcast_(y, 0),
            "broadcast_async_": lambda y: hvd.synchronize(hvd.broadcast_async_(y, 0)),
            "broadcast_parameters": lambda y: hvd.broadcast_parameters([y], 0),
        }
        missed = []
        for title, call in calls.items():
            x = torch.ones(size, 2, requires_grad=True)
            y = x.exp()  # whose values backward needs
            call(y if is_plain else y[:, :1])
            try:
                y.sum().backward()
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)  # noqa: PT017 - which of them is the question
            else:
                missed.append(title)
        with torch.inference_mode():
            alone = hvd.allreduce_(torch.ones(2), op=hvd.Sum).tolist()  # it has no version
        return missed, alone

    assert ranks.run(body) == [([], [2.0, 2.0])] * 2
