"""Jobs that receive a stop notice save under --checkpoint, and continue when they are started again."""

import random
import signal
from collections import Counter

import pytest

from tests.system.launcher import Finished, Launcher
from tests.system.tables import rest_nightly

SCRIPT = """
import os, time, torch
import worker_runtime.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
samples = int(os.environ["SAMPLES"])
data = torch.arange(float(samples)).reshape(-1, 1) / samples
state = hvd.elastic.TorchState(model, optimizer, sampler=hvd.elastic.ElasticSampler(data), epoch=0, step=0)
loader = torch.utils.data.DataLoader(data, batch_size=3, sampler=state.sampler)
seen = open(f"seen.{os.getpid()}", "w")

@hvd.elastic.run
def train(state):
    stop = max(int(os.environ["STOP"]), state.step + 1)
    while state.epoch < 2:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            state.sampler.record_batch(0, len(batch))
            state.step += 1
            print(*((state.epoch + batch[:, 0]) * samples).round().int().tolist(), file=seen, flush=True)
            if state.step >= stop:
                if state.step == stop and hvd.rank() == 0:
                    print("here", flush=True)
                time.sleep(0.05)  # so that the notice comes before the end
            state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)

train(state)
if hvd.rank() == 0:
    print("end", state.step, [tensor.tolist() for tensor in model.parameters()], flush=True)
"""


def train(hvdrun: Launcher, *options: str, samples: int, stop: int = 10**6) -> Finished:
    """Train to the end, or until a notice that comes after so many steps."""
    words = (*options, "--no-prefix", "--checkpoint", "kept", "--grace", "60s", "python", "train.py")
    running = hvdrun.start(*words, environment={"SAMPLES": str(samples), "STOP": str(stop)})
    if stop < 10**6:
        running.stdout.wait_for("here", limit_seconds=60)
        running.send(signal.SIGUSR2)
    return running.wait()


def test_a_job_that_is_ordered_to_stop_saves_ends_with_75_and_continues_at_another_size(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT)
    stopped = train(hvdrun, "-np", "2", "--min-np", "1", samples=600, stop=7)
    path = hvdrun.directory / "kept" / "checkpoint-000001.pt"
    assert (stopped.returncode, stopped.stdout) == (75, "here\n")
    assert f"hvdrun: the state is saved in {path}; the same command continues from there\n" in stopped.stderr
    resumed = train(hvdrun, "-np", "1", samples=600)
    assert (resumed.returncode, resumed.stdout.split()[0]) == (0, "end")
    assert resumed.stderr == f"hvdrun: continuing from {path}\n"
    seen = Counter(word for path in hvdrun.directory.glob("seen.*") for word in path.read_text().split())
    assert seen == {str(sample): 1 for sample in range(2 * 600)}


@pytest.mark.nightly
@pytest.mark.parametrize("options", [("-np", "3"), ("-np", "3", "--min-np", "2")], ids=["static", "elastic"])
def test_a_job_that_is_stopped_again_and_again_ends_as_if_it_had_not_been(
    hvdrun: Launcher, options: tuple[str, ...]
) -> None:
    hvdrun.write("train.py", SCRIPT)
    whole = train(hvdrun, *options, samples=1800)
    assert whole.returncode == 0, whole.stderr
    chance, stop = random.Random(3), 0  # noqa: S311 - no secret
    for _ in range(2):
        stop += chance.randint(1, 12)
        stopped = train(hvdrun, *options, samples=1800, stop=stop)
        assert stopped.returncode == 75, stopped.stderr
    resumed = train(hvdrun, *options, samples=1800)
    assert (resumed.returncode, resumed.stdout) == (0, whole.stdout)
    assert len(list((hvdrun.directory / "kept").iterdir())) == 2


@pytest.mark.parametrize(
    ("training", "reported"),
    rest_nightly(
        [
            ("hvd.allreduce(torch.ones(1))", True),
            ("hvd.elastic.run(lambda state: None)(hvd.elastic.TorchState(step=0))", False),
            ("hvd.elastic.TorchState(step=0).save('kept')", False),
        ],
        first=2,
    ),
)
def test_a_script_that_can_save_nothing_is_warned_that_checkpoint_has_no_effect(
    hvdrun: Launcher, training: str, *, reported: bool
) -> None:
    hvdrun.write("train.py", f"import torch, worker_runtime.torch as hvd\nhvd.init()\n{training}\n")
    finished = hvdrun("-np", "2", "--checkpoint", "kept", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("(--checkpoint): the script has no hvd.elastic.run.\n") == reported
