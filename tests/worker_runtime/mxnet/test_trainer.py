"""Training with the distributed trainer or the distributed optimizer; and what only the trainer does."""

import itertools
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import (
    MAKERS,
    OPTIMIZERS,
    WAYS,
    MakeTrainer,
    check,
    differentiate,
    in_both_ways,
    learn,
    make_net,
    make_parameters,
    make_plain,
    make_sgd,
    make_values,
    read,
    subtract,
    take_step,
    train,
)
from tests.worker_runtime.ranks import RankPool, Ranks
from worker_runtime.mxnet.trainer import DistributedTrainer
from worker_runtime.reduction.reducer import GradientReducer

SOAK_SIZE = int(os.environ.get("HVDRUN_SOAK_WORKERS", "0"))
TRAININGS = [
    *itertools.product([2], WAYS[:-1], OPTIMIZERS, [False, True]),
    *itertools.product([2], WAYS[-1:], OPTIMIZERS, [False]),  # a Module is always hybrid
    *itertools.product([3], WAYS, ["momentum"], [True]),
]
in_one_step_or_two = pytest.mark.parametrize("is_split", [False, True], ids=["step", "split"])


def check_training(pool: RankPool | Ranks, size: int, way: str, name: str, *, hybrid: bool) -> None:
    replicas = pool.run(lambda: train(way, name, hvd.rank(), hvd.size(), hybrid=hybrid), size=size)
    check(replicas, train(way, name, hybrid=hybrid), 1e-4 if way == "module" else 1e-9 if size == 2 else 1e-6)


@pytest.mark.parametrize(("size", "way", "name", "hybrid"), TRAININGS)
def test_workers_train_as_one_process_with_the_whole_batch(
    ranks: RankPool, size: int, way: str, name: str, *, hybrid: bool
) -> None:
    check_training(ranks, size, way, name, hybrid=hybrid)


@pytest.mark.skipif(SOAK_SIZE == 0, reason="only in make soak: HVDRUN_SOAK_WORKERS=4")
def test_more_workers_train_as_one_process() -> None:
    with Ranks(SOAK_SIZE) as many:
        for way, name, hybrid in itertools.product(WAYS, OPTIMIZERS, (False, True)):
            check_training(many, SOAK_SIZE, way, name, hybrid=hybrid)


@pytest.mark.parametrize(
    ("way", "settings"),
    [
        *itertools.product(MAKERS, [{}, {"num_groups": 2}, {"gradient_predivide_factor": 4.0}]),
        ("trainer", {"num_groups": 9}),
        ("trainer", {"num_groups": 2, "gradient_predivide_factor": 4.0}),
        ("trainer", {"compression": hvd.Compression.fp16}),
        ("trainer", {"compression": hvd.Compression.fp16, "num_groups": 1}),
        ("trainer", {"prefix": "generator"}),
    ],
    ids=str,
)
def test_a_step_subtracts_the_mean_over_workers_of_the_gradient_by_the_batch_size(
    ranks: RankPool, way: str, settings: dict[str, object]
) -> None:
    def body() -> object:
        shapes, dtypes = [(4,), (3, 2), (5,), (2,)], ["float32", "float64", "float16", "float64"]
        if not settings:  # several buckets
            shapes, dtypes = [*shapes, (600, 600), (700, 500)], [*dtypes, "float32", "float64"]
        params = make_parameters(*shapes, dtypes=dtypes)
        return subtract(make_sgd(params, MAKERS[way], **settings), params, 10, 5, 1, 1)

    for found in ranks.run(body):
        for values in found:
            assert values == pytest.approx([1 - 0.15 - 0.3 - 1.5 - 1.5], abs=2e-3)


@pytest.mark.parametrize("form", [dict, lambda p: p, lambda p: list(p.values()), lambda p: iter(p.values())])
def test_parameters_may_come_in_any_form(ranks: RankPool, form: type) -> None:
    def body() -> object:
        params = make_parameters((4,), (3,))
        return subtract(hvd.DistributedTrainer(form(params), "sgd", {"learning_rate": 1.0}), params, 1, 1, 1)

    assert ranks.run(body) == [[[-3.5], [-3.5]]] * 2


def test_gradients_may_be_changed_between_averaging_and_updating(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((4,))
        trainer = make_sgd(params)
        norms = []
        for _ in range(3):
            differentiate(params, 3.0 * (2 * hvd.rank()))
            trainer.allreduce_grads()
            norms.append(mx.gluon.utils.clip_global_norm([params["p0"].grad()], 2.0))
            trainer.update(1)
        return norms, params["p0"].data().asnumpy().tolist()

    for norms, values in ranks.run(body):
        assert norms == pytest.approx([6.0] * 3)
        assert values == pytest.approx([-2.0] * 4, abs=1e-5)


def test_a_gradient_that_is_read_in_the_background_is_not_overwritten(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((700, 700))
        trainer = make_sgd(params)
        read_late = []
        for _ in range(4):
            differentiate(params, hvd.rank() + 1)
            matrix = mx.nd.ones((500, 500))
            for _ in range(6):
                matrix = mx.nd.dot(matrix, matrix) * 0
            read_late.append((params["p0"].grad() + matrix[0, 0]).mean())
            trainer.allreduce_grads()
        return [mean.asscalar() for mean in read_late]

    assert ranks.run(body) == [[1.0] * 4, [2.0] * 4]


def test_a_parameter_without_gradients_is_left_alone(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,), (2,))
        trainer = make_sgd(params)
        values = []
        for step in range(6):
            params["p1"].grad_req = "null" if step in {1, 2} else "write"
            differentiate(params, hvd.rank() + 1, ["p0"] if step in {1, 2} else [])
            trainer.step(1)
            values.append([parameter.data().asnumpy()[0] for parameter in params.values()])
        return values

    expected = [[1 - 1.5 * (step + 1), 1 - 1.5 * max(1, step - 1)] for step in range(6)]
    assert ranks.run(body) == [expected] * 2


def test_gradients_of_several_backward_passes_are_added(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,))
        params["p0"].grad_req = "add"
        trainer = make_sgd(params)
        for _ in range(3):
            differentiate(params, hvd.rank() + 1)
            subtract(trainer, params, 2)
            params["p0"].zero_grad()
        return params["p0"].data().asnumpy().tolist()

    assert ranks.run(body) == [[1 - 3 * 1.5] * 2] * 2


@pytest.mark.parametrize(("dtype", "is_wide"), [("float32", False), ("float16", True)])
def test_saved_states_continue_the_training(ranks: RankPool, tmp_path: Path, dtype: str, *, is_wide: bool) -> None:
    def body() -> tuple[list[float], list[float]]:
        file, settings = str(tmp_path / str(hvd.rank())), {"momentum": 0.9, "multi_precision": is_wide}

        def make(values: mx.nd.NDArray) -> tuple[mx.gluon.Parameter, DistributedTrainer]:
            parameter = mx.gluon.Parameter("w", shape=(3,), dtype=dtype)
            parameter.initialize()
            parameter.set_data(values)
            return parameter, DistributedTrainer([parameter], "sgd", {"learning_rate": 0.3, **settings})

        def train(parameter: mx.gluon.Parameter, trainer: DistributedTrainer, steps: range) -> list[float]:
            for step in steps:
                with mx.autograd.record():
                    loss = (parameter.data() * (step + hvd.rank() / 3)).sum()
                loss.backward()
                trainer.step(2)
            return parameter.data().asnumpy().tolist()

        parameter, trainer = make(mx.nd.ones(3, dtype=dtype))
        train(parameter, trainer, range(3))
        trainer.save_states(file)
        restored = make(parameter.data().copy())
        expected = train(parameter, trainer, range(3, 6))
        restored[1].load_states(file)
        return expected, train(*restored, range(3, 6))

    (first, again), *others = ranks.run(body)
    assert [first, again] == [first, first]
    assert others == [(first, first)]


@pytest.mark.parametrize("size", [1, 2])
def test_contexts_of_a_worker_are_summed_before_workers_are_averaged(ranks: RankPool, size: int) -> None:
    def train_on(contexts: list[mx.Context], rank: int, size: int) -> list[list[np.ndarray]]:
        net = make_net(contexts)
        make = MAKERS["trainer"] if contexts[1:] else mx.gluon.Trainer
        trainer = make(
            net.collect_params(), "sgd", {"learning_rate": 0.1}, **({} if contexts[1:] else {"kvstore": None})
        )
        parts = mx.gluon.utils.split_and_load(mx.nd.array(make_values(12, 6)[rank::size], dtype="float64"), contexts)
        for _ in range(4):
            with mx.autograd.record():
                losses = [net(part).square() for part in parts]
            mx.autograd.backward(losses)
            trainer.step(12 // size)
        return [[each.data(context).asnumpy() for each in net.collect_params().values()] for context in contexts]

    workers = ranks.run(lambda: train_on([mx.cpu(0), mx.cpu(1)], hvd.rank(), hvd.size()), size=size)
    check([replica for worker in workers for replica in worker], train_on([mx.cpu(0)], 0, 1)[0])


@pytest.mark.parametrize("contexts", [1, 2])
@in_one_step_or_two
def test_a_parameter_that_only_some_workers_use_is_updated_on_all(
    ranks: RankPool, *, is_split: bool, contexts: int
) -> None:
    def body() -> object:
        params = make_parameters((2,), (2,), (2,))
        params.reset_ctx([mx.cpu(place) for place in range(contexts)])
        trainer = make_sgd(params)
        for step in range(4):
            differentiate(params, 2, ["p0"] if step % 2 == hvd.rank() else ["p0", "p1"])
            take_step(trainer, is_split=is_split, ignore_stale_grad=True)
        return [[data.asnumpy().tolist() for data in parameter.list_data()] for parameter in params.values()]

    assert ranks.run(body) == [[[[-7.0] * 2] * contexts, [[-3.0] * 2] * contexts, [[1.0] * 2] * contexts]] * 2


def test_an_unused_parameter_counts_as_zeros_also_with_a_gradient_from_before(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((1,), (1,))
        trainer = make_sgd(params)
        found = []
        for used in (["p0", "p1"], ["p0", "p1"][hvd.rank() :], ["p0"]):
            differentiate(params, 4, used)
            take_step(trainer, is_split=True, ignore_stale_grad=True)
            found.append([params[name].data().asscalar() for name in ("p0", "p1")])
        return found

    assert ranks.run(body) == [[[-3.0, -3.0], [-5.0, -7.0], [-9.0, -7.0]]] * 2


def test_a_step_without_an_update_does_not_decide_what_the_next_one_updates(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((1,), (1,))
        trainer = make_sgd(params)
        trainer._agreed = [(params["p0"], True), (params["p1"], False)]  # with other ranks, which are lost since then
        differentiate(params, 4, ["p1"])
        trainer.step(1, ignore_stale_grad=True)
        return [params[name].data().asscalar() for name in ("p0", "p1")]

    assert ranks.run(body, size=1) == [[1.0, -3.0]]


@in_one_step_or_two
def test_gradients_that_no_backward_has_made_are_averaged_and_left_to_the_program(
    ranks: RankPool, *, is_split: bool
) -> None:
    def body() -> object:
        params = make_parameters((1,))
        trainer = make_sgd(params)
        for _ in range(2):
            params["p0"].grad()[:] = hvd.rank() + 1
            (trainer.allreduce_grads if is_split else trainer._allreduce_grads)()
        with pytest.raises(UserWarning, match=r"`p0`.*has not been updated"):
            trainer.update(1)
        return params["p0"].grad().asscalar()

    assert ranks.run(body) == [1.5] * 2


@in_one_step_or_two
def test_a_stale_gradient_not_to_be_ignored_is_reported_as_in_gluon(ranks: RankPool, *, is_split: bool) -> None:
    def body() -> None:
        params = make_parameters((2,), (2,))
        trainer = make_sgd(params)
        differentiate(params, 1, ["p0", "p1"][: 1 + hvd.rank()])
        if hvd.rank() == 0:
            with pytest.raises(UserWarning, match=r"`p1`.*has not been updated"):
                take_step(trainer, is_split=is_split)
        else:
            take_step(trainer, is_split=is_split)

    ranks.run(body)


@in_both_ways
def test_sparse_gradients_are_averaged(ranks: RankPool, make: MakeTrainer) -> None:
    def train_table(make: MakeTrainer, rank: int, size: int) -> list[np.ndarray]:
        table = mx.gluon.nn.Embedding(6, 2, sparse_grad=True, prefix="table_")
        table.initialize(init="ones")
        trainer = make(table.collect_params(), mx.optimizer.create("adagrad", learning_rate=0.5))
        for step in range(4):
            words = (np.array([step, step + 1, 5, 2]) % 6)[rank::size]
            learn(table, mx.nd.array(words))
            trainer.step(len(words))
        return read(table)

    replicas = ranks.run(lambda: train_table(make, hvd.rank(), hvd.size()))
    check(replicas, train_table(make_plain, 0, 1), tolerance=1e-5)


def test_a_compressor_of_the_users_handles_each_gradient(ranks: RankPool) -> None:
    def body() -> object:
        params, asked = make_parameters((3,), (2, 2)), []
        doubling = SimpleNamespace(
            compress=lambda array: asked.append(array.dtype) or (array.astype("float64") * 2, array.dtype),
            decompress=lambda array, dtype: (array / 2).astype(dtype),
        )
        return subtract(make_sgd(params, compression=doubling), params, 1, 1, 1), len(asked)

    assert ranks.run(body) == [([[-3.5], [-3.5]], 6)] * 2


@in_both_ways
def test_ranks_outside_the_process_set_step_by_themselves(ranks: RankPool, make: MakeTrainer) -> None:
    def body() -> object:
        params = make_parameters((1,))
        return subtract(make_sgd(params, make, process_set=hvd.add_process_set([0, 2])), params, 1, 1, 1, 1)

    assert ranks.run(body, size=3) == [[[-7.0]]] * 3


@pytest.mark.parametrize("made", ["in one order", "in another order", "after one more on a rank"])
def test_trainers_with_prefixes_find_each_other_whenever_they_are_made(ranks: RankPool, made: str) -> None:
    def body() -> object:
        models = {"a_": make_parameters((2,)), "b_": make_parameters((2,))}
        is_other = hvd.rank() == 0
        if is_other and made == "after one more on a rank":
            make_sgd(make_parameters((2,)))
        prefixes = sorted(models, reverse=is_other and made == "in another order")
        trainers = {prefix: make_sgd(models[prefix], prefix=prefix) for prefix in prefixes}
        for _ in range(3):
            for factor, params in enumerate(models.values(), 1):
                differentiate(params, 2.0 * factor * hvd.rank())
            for prefix in ("b_", "a_"):
                trainers[prefix].step(1)
        return [params["p0"].data().asnumpy()[0] for params in models.values()]

    assert ranks.run(body) == [[-2.0, -5.0]] * 2


def test_the_arguments_of_older_releases_are_understood(ranks: RankPool) -> None:
    calls = [
        ((2.0,), {}, (2.0, "", 0)),
        ((2.0, "old"), {}, (2.0, "old", 0)),
        ((2.0, "old", 3), {}, (2.0, "old", 3)),
        ((2.0, None, 3), {}, (2.0, "", 3)),
        ((2.0,), {"prefix": "old", "num_groups": 3}, (2.0, "old", 3)),
        ((2,), {"num_groups": 3}, (2.0, "", 3)),
    ]

    def body() -> None:
        for positional, named, expected in calls:
            params = make_parameters((1,))
            with pytest.warns(DeprecationWarning, match="used as gradient_predivide_factor"):
                trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, *positional, **named)
            assert subtract(trainer, params, 1, 1, 1) == [[-3.5]]
            assert (trainer._gradient_predivide_factor, trainer._prefix, trainer._num_groups) == expected

    ranks.run(body)


def test_a_distributed_optimizer_is_taken_out(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((1,))
        plain = mx.optimizer.create("sgd", learning_rate=1.0)
        with pytest.warns(UserWarning, match="averages gradients itself"):
            trainer = hvd.DistributedTrainer(params, hvd.DistributedOptimizer(plain))
        return trainer._optimizer is plain, subtract(trainer, params, 1)

    assert ranks.run(body) == [(True, [[-0.5]])] * 2


def test_arguments_that_make_no_trainer_are_named(ranks: RankPool) -> None:
    def body() -> None:
        params = make_parameters((1,))
        trainer = mx.gluon.Trainer(params, "sgd", kvstore=None)
        for arguments, error, message in (
            ((params, "sgd", None, hvd.Compression.none, 1.0, 3), AssertionError, "prefix is 3"),
            ((params, "sgd", None, "fp16"), TypeError, "compression is 'fp16'"),
            ((3, "sgd"), ValueError, "list or dict of Parameters"),
            ((params, "none"), ValueError, "Cannot find optimizer"),
            ((trainer,), TypeError, "takes the parameters and the optimizer, not a Trainer"),
            ((trainer, "sgd"), TypeError, "takes the parameters and the optimizer, not a Trainer"),
            ((params,), TypeError, r"needs an optimizer: .*'sgd'"),
            ((params, None), TypeError, r"needs an optimizer: .*'sgd'"),
        ):
            with pytest.raises(error, match=message):
                hvd.DistributedTrainer(*arguments)

    ranks.run(body, size=1)


def test_a_subclass_may_average_in_its_own_way(ranks: RankPool) -> None:
    class Summing(DistributedTrainer):
        def _allreduce_grads(self) -> None:
            super()._allreduce_grads()
            for parameter in self._params:
                parameter.grad()[:] *= hvd.size()

    def body() -> object:
        params = make_parameters((1,))
        return subtract(make_sgd(params, Summing), params, 1)

    assert ranks.run(body) == [[[-2.0]]] * 2


def test_a_step_is_prepared_once(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,))
        trainer = make_sgd(params)
        prepare, entered = GradientReducer.preparing, []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GradientReducer, "preparing", lambda self: entered.append(0) or prepare(self))
            subtract(trainer, params, 1)
        return len(entered)

    assert ranks.run(body) == [1] * 2


@pytest.mark.parametrize("batch_size", [0, 1])
def test_a_step_that_cannot_begin_on_one_rank_fails_on_all_and_the_next_is_as_ever(
    ranks: RankPool, batch_size: int
) -> None:
    def body() -> object:
        params = make_parameters((2,))
        shape = (0,) if hvd.rank() and batch_size else (2,)
        late = mx.gluon.Parameter("late", shape=shape, init="ones", allow_deferred_init=True)
        late.initialize()
        params.update({"late": late})
        trainer = make_sgd(params)
        if not hvd.rank():
            differentiate(params, 1.0)
        with pytest.raises((RuntimeError, ArithmeticError)) as caught:  # Gluon's own, or HorovodInternalError
            trainer.step(batch_size if hvd.rank() else 1)
        if hvd.rank() and batch_size:
            late.shape = (2,)
            late._finish_deferred_init()
        return type(caught.value).__name__, str(caught.value), subtract(trainer, params, 1, 1, 1)

    (_, text, values), (name, cause, same) = ranks.run(body)
    assert f"failed on rank 1 before anything was sent: {name}: {cause}" in text
    assert name == ("DeferredInitializationError" if batch_size else "ZeroDivisionError")
    assert values == same == [[-3.5]] * 2


def test_the_treatment_of_stale_gradients_must_be_the_same_on_all_ranks(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,))
        trainer = make_sgd(params)
        differentiate(params, hvd.rank() + 1.0)
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 waits for allreduce '.*ignore_stale_grad=True'"):
            trainer.step(1, ignore_stale_grad=hvd.rank() == 0)
        for ignores in (True, False, True):
            differentiate(params, hvd.rank() + 1.0)
            trainer.step(1, ignore_stale_grad=ignores)
        return params["p0"].data().asnumpy().tolist()

    assert ranks.run(body) == [[-3.5, -3.5]] * 2


def test_a_subclass_that_undoes_horovods_division_is_reported_once(ranks: RankPool) -> None:
    def body() -> object:
        reported = []
        for factor in (hvd.size(), 0.5):
            params = make_parameters((1,))
            trainer = DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
            trainer._scale *= factor
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    differentiate(params, 1.0)
                    trainer.allreduce_grads()
                    trainer.update(1)
                    differentiate(params, 1.0)
                    trainer.step(1)
            reported.append([str(each.message) for each in caught if "multiplied _scale by 2" in str(each.message)])
        return [len(each) for each in reported]

    assert ranks.run(body) == [[1, 0]] * 2
