"""The checks of the training in MXNet: gradients that are not finite, and weights that differ."""

import io
import os
from contextlib import redirect_stderr

import mxnet as mx
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import make_net
from tests.worker_runtime.ranks import RankPool
from worker_runtime.errors import ReplicasDifferError


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("way", ["trainer", "optimizer", "compressed", "scaled"])
def test_a_gradient_that_is_not_finite_is_named_with_its_rank_and_parameter(
    ranks: RankPool, way: str, size: int
) -> None:
    def body() -> list[str]:
        os.environ["HVD_CHECK_NAN"] = "1"
        net = make_net()
        parameters = net.collect_params()
        if way == "optimizer":
            optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1))
            trainer = mx.gluon.Trainer(parameters, optimizer, kvstore=None)
        else:
            compression = hvd.Compression.fp16 if way == "compressed" else hvd.Compression.none
            trainer = hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.1}, compression=compression)
        if way == "scaled":
            trainer._amp_loss_scaler = type("Scaler", (), {"loss_scale": 2.0, "has_overflow": lambda *_: False})()
        with redirect_stderr(io.StringIO()) as written:
            for step in range(1, 5):
                with mx.autograd.record():
                    loss = net(mx.nd.ones((2, 6), dtype="float64")).sum()
                loss.backward()
                if (step, hvd.rank()) == (3, size - 1):
                    parameters["net_dense1_weight"].grad()[:] = float("nan")
                trainer.step(2)
        del os.environ["HVD_CHECK_NAN"]
        return written.getvalue().splitlines()

    first, *others = ranks.run(body, size=size)
    assert not any(others)
    expected = [f"hvdrun: rank {size - 1}'s gradient of net_dense1_weight is not finite (NaN) in step 3"]
    assert first == ([] if way == "scaled" else expected)


def test_weights_that_differ_are_named(ranks: RankPool) -> None:
    def body() -> str:
        os.environ["HVD_CHECK_REPLICAS"] = "2"
        net = make_net()
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        for step in range(5):
            with mx.autograd.record():
                loss = net(mx.nd.ones((2, 6), dtype="float64")).sum()
            loss.backward()
            if step == 4:
                break
            trainer.step(2)
            if (step, hvd.rank()) == (3, 2):
                net.collect_params()["net_dense0_bias"].data()[1] += 1e-9
        with pytest.raises(ReplicasDifferError) as caught:
            trainer.step(2)
        del os.environ["HVD_CHECK_REPLICAS"]
        return str(caught.value)

    expected = (
        "net_dense0_bias is not the same on all ranks between step 2 and step 4 (it is another one on rank 2 than"
    )
    assert all(expected in message for message in ranks.run(body, size=3))


def test_values_that_are_not_trained_may_differ(ranks: RankPool) -> None:
    """The running mean and variance of BatchNorm are each rank's own."""

    def body() -> None:
        net = mx.gluon.nn.BatchNorm(in_channels=2)
        net.initialize()
        os.environ["HVD_CHECK_REPLICAS"] = "1"
        try:
            trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
        finally:
            del os.environ["HVD_CHECK_REPLICAS"]
        for step in range(3):
            batch = mx.nd.ones((4, 2)) * (hvd.rank() + step)
            with mx.autograd.record():
                loss = net(batch).sum()
            loss.backward()
            trainer.step(4)
        means = hvd.allgather_object(net.running_mean.data().asnumpy().tolist())
        assert means[0] != means[1]

    ranks.run(body, size=2)
