"""Dense gradients: what becomes of them, and where they lie."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import (
    backward,
    begin,
    list_gradients,
    make_parameters,
    make_reducer,
    train,
    warm_up,
    warm_up_and_overlap,
)
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import GradientShapeError
from worker_runtime.reduction import dense
from worker_runtime.reduction.dense import PACKED_BYTES


@pytest.fixture(params=[0, PACKED_BYTES], ids=["each", "packed"], autouse=True)
def packed_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Below how many bytes gradients are packed; these tests have only small ones."""
    monkeypatch.setattr(dense, "PACKED_BYTES", request.param)
    return int(request.param)


def test_gradients_of_several_dtypes_and_layouts_are_averaged(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        wide = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        narrow = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
        half = torch.zeros(2, dtype=torch.float16, requires_grad=True)
        complex_ = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
        image = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last).requires_grad_()
        gappy = torch.zeros(3, 4)[:, ::2].requires_grad_()
        empty = torch.zeros(0, 3, requires_grad=True)
        parameters = [wide, narrow, half, complex_, image, gappy, empty]
        reducer = make_reducer(parameters, engine, bounds=(1000, 1000))
        weights = torch.arange(6.0, dtype=torch.float64).reshape(3, 2).t()
        pixels = torch.arange(24.0).reshape(2, 3, 2, 2)
        factor = 2 * engine.rank + 1  # 2 on average
        for _ in range(4):
            for parameter in parameters:
                parameter.grad = None
            loss = (wide * weights).sum() + (narrow.sum() + half.sum()).double() + empty.sum() + gappy.sum()
            ((loss + (image * pixels).sum() + (complex_ * 1j).real.sum()) * factor).backward()
            reducer.synchronize()
        assert torch.equal(wide.grad, weights * 2)
        assert narrow.grad.tolist() == [2.0] * 3
        assert half.grad.tolist() == [2.0] * 2
        assert complex_.grad.tolist() == [-2j] * 2
        assert torch.equal(image.grad, pixels * 2)
        assert image.grad.stride() == image.stride()
        assert torch.equal(gappy.grad, torch.full((3, 2), 2.0))
        return empty.grad.shape == (0, 3)

    assert world.run(body) == [True] * 2


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Combination(Reduction.SUM), 5.0),
        (Combination(Reduction.MIN), 1.0),
        (Combination(Reduction.MAX), 4.0),
        (Combination(Reduction.PRODUCT), 4.0),
        (Combination(Reduction.AVERAGE, 1 / 8, 8.0), 2.5),
    ],
)
def test_gradients_are_combined_as_the_options_say(world: World, how: Combination, expected: float) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 1, how=how)
        return [train(reducer, parameters, 1.0 + 3 * engine.rank) for _ in range(3)]

    assert world.run(body) == [[[[expected] * 4]] * 3] * 2


def test_gradients_that_are_cleared_in_place_are_reduced_where_they_are(world: World, packed_bytes: int) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 1, is_warm=True)
        train(reducer, parameters)
        places, values = set(), []
        for _ in range(4):
            parameters[0].grad.zero_()
            (parameters[0] * (engine.rank + 1)).sum().backward()
            reducer.synchronize()
            places.add(parameters[0].grad.data_ptr())
            values.append(parameters[0].grad[0].item())
        return len(places), values

    # A large local gradient lies in one while the result goes to the other.
    count = 2 if world.is_elastic and not packed_bytes else 1
    assert world.run(body) == [(count, [1.5] * 4)] * 2


def test_local_gradients_are_kept_until_the_step_is_committed_where_workers_may_be_lost() -> None:
    world = World(2, is_elastic=True)

    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        sum((parameter * (engine.rank + 1)).sum() for parameter in parameters).backward()
        local = [parameter.grad for parameter in parameters]
        kept = [reducer._step.find_local(entry) for entry in reducer.entries]
        assert all(mine is theirs for mine, theirs in zip(local, kept, strict=True))
        commit = engine.complete_step

        def look_and_commit(among: Members) -> None:
            commit(among)
            assert all(parameter.grad is mine for parameter, mine in zip(parameters, local, strict=True))
            assert list_gradients(parameters) == [[engine.rank + 1] * 4] * 2

        engine.complete_step = look_and_commit
        reducer.synchronize()
        assert not reducer._step.contents
        return engine.asked[-1], list_gradients(parameters)

    assert world.run(body) == [("commit", [[1.5] * 4] * 2)] * 2


@pytest.mark.parametrize("packed_bytes", [0], indirect=True)
def test_gradients_of_autograd_are_dropped_in_backward_where_workers_are_never_lost() -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True, bounds=(1000, 1000))
        sum(parameter.sum() for parameter in parameters).backward()
        shared = len({parameter.grad.untyped_storage().data_ptr() for parameter in parameters})
        reducer.synchronize()
        return shared, engine.asked

    names = ["allreduce.optimizer.1.bucket.0"]
    assert World(2).run(body) == [(1, names)] * 2


def test_gradients_that_are_set_by_hand_are_averaged(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        for parameter in parameters:
            parameter.grad = torch.full((4,), engine.rank + 1.0)
        reducer.synchronize()
        return list_gradients(parameters)

    assert world.run(body) == [[[1.5] * 4] * 2] * 2


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")  # the test makes such a gradient
def test_a_gradient_with_a_graph_stays_usable_until_it_is_averaged(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        (parameter,) = make_parameters(1)
        reducer = make_reducer([parameter], engine, passes=2)
        results = []
        for _ in range(3):
            parameter.grad = None
            (parameter**2).sum().mul(engine.rank + 1).backward(create_graph=True)
            penalty = (parameter.grad**2).sum()
            penalty.backward()
            reducer.synchronize()
            results.append(parameter.grad[0].item())
        return results

    # 2 f x + 8 f^2 x on a rank whose factor is f
    assert world.run(body) == [[((2 + 8) + (4 + 32)) / 2] * 3] * 2


def test_a_smaller_dtype_on_the_wire_changes_only_the_precision(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, wire_dtype=torch.bfloat16)
        for _ in range(4):
            train(reducer, parameters, 1.0 + engine.rank / 512)
        gradients = [parameter.grad for parameter in parameters]
        (bucket,) = reducer.buckets
        operation = bucket._make_operation(reducer._communicator, bucket.make_contents({}), "x")
        assert operation.tensors[0].dtype == torch.bfloat16
        return [(gradient.dtype, gradient.tolist()) for gradient in gradients]

    assert world.run(body) == [[(torch.float32, [1.0] * 4)] * 2] * 2


def test_a_gradient_that_turns_sparse_later_travels_as_a_dense_one(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        weight = torch.zeros(4, 2, requires_grad=True)
        reducer = make_reducer([weight], engine)
        warm_up(reducer, [weight], engine)
        torch.nn.functional.embedding(torch.tensor([engine.rank]), weight, sparse=True).sum().backward()
        reducer.synchronize()
        return weight.grad.to_dense()[:, 0].tolist()

    assert world.run(body) == [[0.5, 0.5, 0.0, 0.0]] * 2


@warm_up_and_overlap
def test_a_gradient_of_another_shape_than_its_parameter_is_refused_by_name(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 1, is_warm=is_warm)
        train(reducer, parameters)
        parameters[0].grad.data = torch.ones(1)  # which would spread to the whole of the parameter
        with pytest.raises(GradientShapeError, match=r"gradient of p0 has the shape \[1\], and its parameter \[4\]"):
            reducer.synchronize()
        return train(reducer, parameters, engine.rank + 1)

    assert world.run(body) == [[[1.5] * 4]] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_parameter_that_changes_its_dtype_between_backward_and_step_gets_a_gradient_of_the_new_one(
    world: World, dtype: torch.dtype
) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        backward(parameters, engine.rank + 1)
        for parameter in parameters:
            parameter.data = parameter.data.to(dtype)
            parameter.grad.data = parameter.grad.data.to(dtype)
        reducer.synchronize()
        return [(parameter.grad.dtype, parameter.grad.tolist()) for parameter in parameters]

    assert world.run(body) == [[(dtype, [1.5] * 4)] * 2] * 2
