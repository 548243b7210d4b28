"""Reducescatter under Horovod's arguments; what it computes is tested with the collectives."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

FORMS = {
    "reducescatter": hvd.reducescatter,
    "reducescatter_async": lambda x, **more: hvd.synchronize(hvd.reducescatter_async(x, **more)),
    "grouped_reducescatter": lambda x, **more: hvd.grouped_reducescatter([x], **more)[0],
    "grouped_reducescatter_async": lambda x, **more: hvd.synchronize(hvd.grouped_reducescatter_async([x], **more))[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_take_all_arguments_and_uneven_rows(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([0, 1])
        x = torch.arange(5.0) + hvd.rank()
        average = reduce(x, name="x").tolist()
        scaled = reduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=10.0).tolist()
        among_two = reduce(x, op=hvd.Sum, process_set=some).tolist() if some.included() else None
        return average, scaled, among_two, reduce(torch.ones(1, 2)).shape[0]

    assert ranks.run(body, size=3) == [
        ([1.0, 2.0], [60.0, 120.0], [1.0, 3.0, 5.0], 1),
        ([3.0, 4.0], [180.0, 240.0], [7.0, 9.0], 0),
        ([5.0], [300.0], None, 0),
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", [2, 3, 4, 5])
def test_other_reductions_are_refused_with_horovods_error(ranks: RankPool, form: str, op: int) -> None:
    reduce = FORMS[form]

    def body() -> object:
        with pytest.raises(hvd.HorovodInternalError, match="currently only supports AVERAGE and SUM"):
            reduce(torch.ones(2), op=op)
        with pytest.raises(ValueError, match="currently only supports"):
            reduce(torch.ones(2), op=op)

    ranks.run(body, size=1)


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_without_dimensions_is_refused(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        with pytest.raises(ValueError, match="reducescatter 'x': a tensor without dimensions"):
            reduce(torch.tensor(1.0), name="x")

    ranks.run(body, size=1)


@pytest.mark.parametrize("form", ["reducescatter", "grouped_reducescatter"])
def test_tensors_are_compressed_on_their_way(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        result = reduce(torch.tensor([1.0, 2.0]), compression=hvd.Compression.fp16, op=hvd.Sum)
        return result.dtype == torch.float32, result.tolist()

    assert ranks.run(body) == [(True, [2.0]), (True, [4.0])]


def test_before_init_it_is_an_error() -> None:
    for reduce in FORMS.values():
        with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
            reduce(torch.ones(1))
