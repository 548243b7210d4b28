"""Jobs whose scripts say `import horovod.mxnet`: forked workers, whose forkserver knows no MXNet, and executed ones."""

from importlib.util import find_spec

import pytest

from tests.system.launcher import Launcher

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed: pip install '.[mxnet]'")

WAYS = [pytest.param((), id="forked"), pytest.param(("--no-prefork",), id="executed")]
BEGINS = """
import os, sys
at_start = sorted({"torch", "mxnet"} & sys.modules.keys())
import mxnet as mx
import horovod.mxnet as hvd
hvd.init()
"""
TRAINS = f"""{BEGINS}
mx.random.seed(hvd.rank())
network = mx.gluon.nn.HybridSequential()
network.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dense(1))
network.initialize(mx.init.Xavier())
network.hybridize()
hvd.broadcast_parameters(network.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(network.collect_params(), "sgd", {{"learning_rate": 0.1}})
data = mx.nd.random.normal(shape=(4, 5)) + hvd.rank()
for step in range(3):
    with mx.autograd.record():
        loss = network(data).square().mean()
    loss.backward()
    trainer.step(4)
weight = network[0].weight.data()
drift = hvd.allreduce(weight, op=hvd.Max) - hvd.allreduce(weight, op=hvd.Min)
assert drift.abs().max().asscalar() == 0, "the workers drifted apart"
mx.nd.waitall()
print(at_start, hvd.rank(), "of", hvd.size(), "threads", len(os.listdir("/proc/self/task")))
"""
# Rank 0 has its parameters, rank 1 never initialises one of them before it waits for rank 0.
STALLS = f"""{BEGINS}
network = mx.gluon.nn.Dense(2, prefix="late_", in_units=3 if hvd.rank() == 0 else 0)
network.initialize()
hvd.broadcast_parameters(network.collect_params())
if hvd.rank() == 0:
    import pathlib, time
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
hvd.barrier()
"""
# Ends with an operation under way, one that nobody answers, and a root that waits for no one.
ENDS = f"""{BEGINS}
network = mx.gluon.nn.Dense(2, in_units=3 if hvd.rank() == 0 else 0)
network.initialize()
hvd.broadcast_parameters(network.collect_params())
under_way = hvd.allreduce_async_(mx.nd.ones(300_000), name="under way")
if hvd.rank() == 0:
    alone = hvd.allreduce_async(mx.nd.ones(3), name="alone")
computed = mx.nd.dot(mx.nd.ones((500, 500)), mx.nd.ones((500, 500)))
print("ends", hvd.rank(), flush=True)
"""
THREADS = "2"


def run(hvdrun: Launcher, script: str, *options: str) -> list[str]:
    """What two workers print, in the order of their ranks; all must be well."""
    hvdrun.write("train.py", script)
    # Torch's compiler makes a folder as soon as it is imported, and leaves it.
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(hvdrun.directory / "inductor"), "OMP_NUM_THREADS": THREADS}
    words = ("-np", "2", "-x", "OMP_NUM_THREADS", *options, "python", "train.py")
    finished = hvdrun(*words, environment=environment)
    assert (finished.returncode, finished.stderr) == (0, "")
    return sorted(finished.stdout.splitlines())


def test_a_forked_worker_imports_mxnet_itself_and_trains_as_an_executed_one(hvdrun: Launcher) -> None:
    forked, executed = run(hvdrun, TRAINS), run(hvdrun, TRAINS, "--no-prefork")
    assert [line.partition("threads")[0] for line in forked] == [f"[{r}] ['torch'] {r} of 2 " for r in range(2)]
    assert [line.replace("['torch']", "[]") for line in forked] == executed  # as many threads, too


@pytest.mark.parametrize("options", WAYS)
def test_a_parameter_that_a_rank_never_initialises_is_named(hvdrun: Launcher, options: tuple[str, ...]) -> None:
    hvdrun.write("train.py", STALLS)
    environment = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    words = ("-np", "2", "-x", "HOROVOD_STALL_CHECK_TIME_SECONDS", *options, "python", "train.py")
    running = hvdrun.start(*words, environment=environment)
    running.stderr.wait_for(r"^\[0\] 1: \[broadcast\.late_weight\]", 40)
    hvdrun.write("go", "")
    assert running.wait(30).returncode == 0


@pytest.mark.parametrize("options", WAYS)
def test_a_program_may_end_with_work_pending(hvdrun: Launcher, options: tuple[str, ...]) -> None:
    assert run(hvdrun, ENDS, *options) == [f"[{rank}] ends {rank}" for rank in range(2)]
