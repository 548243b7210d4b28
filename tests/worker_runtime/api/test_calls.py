"""A framework whose arrays are lists has Horovod's functions too: an adapter and their arguments are all it needs."""

import inspect
from collections.abc import Iterator, Sequence

import pytest
import torch

from worker_runtime.api import basics, functions
from worker_runtime.api.calls import Arguments, Form, asynchronous, collective, overwriting, take_first
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.combination import SUM, Reduction
from worker_runtime.torch import ops


class Lists:
    """Lists as tensors; in place, their items are replaced."""

    takes_none = True

    def read(self, arrays: Sequence[list[float]], *, in_place: bool) -> list[torch.Tensor]:
        """Copies."""
        assert in_place in (True, False)
        return list(map(torch.tensor, arrays))

    def wrap(self, results: Sequence[torch.Tensor], arrays: Sequence[list[float]], *, in_place: bool) -> Sequence[list]:
        """New lists, or the old ones."""
        new = [result.tolist() for result in results]
        for array, result in zip(arrays, new, strict=True):
            array[:] = result if in_place else array
        return arrays if in_place else new


@collective(Form("allreduce"))
def allreduce(items: list, name: str | None = None, process_set: ProcessSet = global_process_set) -> Arguments[list]:
    """Add up lists."""
    return Arguments((items,), name, process_set, SUM._replace(postscale=2.0), take_first, Lists())


@collective(Form("allgather", grouped=True))
def grouped_allgather(
    items: Sequence[list], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Arguments[list[list]]:
    """Gather lists."""
    return Arguments(items, name, process_set, None, list, Lists())


allreduce_ = overwriting(Form("allreduce", in_place=True))(allreduce)
allreduce_async_ = asynchronous(Form("allreduce", in_place=True, waits=False))(allreduce_)
grouped_allgather_async = asynchronous(Form("allgather", grouped=True, waits=False), tuple)(grouped_allgather)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    basics.init()
    yield
    basics.shutdown()


def test_a_function_does_what_its_form_says() -> None:
    given = [1.0, 2.0]
    assert allreduce(given) == [2.0, 4.0] != given
    assert allreduce_(given) is given == [2.0, 4.0]
    assert functions.synchronize(allreduce_async_(given, name="x")) is given == [4.0, 8.0]
    assert grouped_allgather([given, [1.0]]) == [given, [1.0]]
    assert functions.synchronize(grouped_allgather_async([given])) == (given,)
    assert grouped_allgather([]) == []


def test_a_function_has_the_arguments_and_the_documentation_of_its_form() -> None:
    of_allreduce = inspect.signature(allreduce)
    assert list(of_allreduce.parameters) == ["items", "name", "process_set"]
    assert of_allreduce.return_annotation is list
    assert inspect.signature(allreduce_) == of_allreduce
    assert inspect.signature(allreduce_async_) == of_allreduce.replace(return_annotation=int)
    assert allreduce_async_.__name__ == allreduce_async_.__qualname__ == "allreduce_async_"
    begun, in_place, plain = (inspect.getdoc(each) or "" for each in (allreduce_async_, allreduce_, allreduce))
    assert begun.startswith("Start `allreduce_`, and return a handle")
    assert begun.endswith(in_place)
    assert in_place.startswith("`allreduce` in place:")
    assert in_place.endswith(plain)


@pytest.mark.parametrize(("average", "expected"), [(True, Reduction.AVERAGE), (False, Reduction.SUM)])
def test_the_old_argument_still_works_and_warns(average: bool, expected: int) -> None:
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert basics.handle_average_backwards_compatibility(None, average) == expected


def test_each_function_of_torch_has_the_name_of_its_form() -> None:
    assert {name: getattr(ops, name).__name__ for name in ops.__all__} == {name: name for name in ops.__all__}
    assert Form("allreduce", grouped=True, in_place=True, waits=False).name == "grouped_allreduce_async_"
