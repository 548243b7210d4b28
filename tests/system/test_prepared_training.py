"""Prepared trainings in real jobs: an elastic one that loses a worker, and one that begins in a notebook."""

import nbclient
import nbformat
import pytest

from tests.house.sources import ROOT
from tests.system.launcher import LIMIT_SECONDS, Launcher

NOTEBOOK = ROOT / "examples" / "notebook_one_line.ipynb"

# Each use of a sample takes one from its weight. The worker that is killed has made its gradients of a step.
SCRIPT = """
import os, signal, time
import torch
from torch.utils.data import DataLoader
import worker_runtime.torch as hvd

hvd.init()
weights = torch.nn.Embedding(48, 1)
torch.nn.init.zeros_(weights.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights.parameters(), lr=1.0), op=hvd.Sum)
loader = DataLoader(torch.arange(48), batch_size=2, shuffle=True)
state = hvd.elastic.TorchState(epoch=0)
weights, optimizer, loader = hvd.prepare(weights, optimizer, loader, state=state)

@hvd.elastic.run
def train(state):
    while state.epoch < 4:
        while state.epoch == 2 and hvd.size() == 1:  # until the other one is there
            state.commit()
            time.sleep(0.05)
        for step, samples in enumerate(loader, start=1):
            optimizer.zero_grad()
            weights(samples).sum().backward()
            if hvd.rank() == 1 and (state.epoch, step, os.environ["HVD_INCARNATION"]) == (1, 5, "1"):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            if step % 4 == 0:
                state.commit()
        state.epoch += 1

train(state)
print("uses", set((-weights.weight.detach()).flatten().tolist()), "of", hvd.size(), flush=True)
"""

# The lost worker has used a batch of its second evaluation.
EVALUATION = """
import os, signal
import torch
from torch.utils.data import DataLoader
import worker_runtime.torch as hvd

hvd.init()
original = hvd.rank()
loader = hvd.split_data(DataLoader(torch.arange(1.0, 49.0), batch_size=2))
for epoch in range(3):
    found = torch.zeros(2)
    for step, samples in enumerate(loader):
        if (epoch, step, original) == (1, 1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        found += torch.stack([samples.sum(), torch.ones(len(samples)).sum()])
    print(epoch, hvd.size(), hvd.allreduce(found, op=hvd.Sum).tolist(), flush=True)
"""

# The five steps, in one more cell of the notebook.
BY_HAND = """
def train_by_hand(epochs):
    hvd.init()
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model

def read_bits(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes()

print({read_bits(each) == read_bits(model) for each in hvdrun.run(train_by_hand, args=(5,), num_proc=2)})
"""


def test_each_sample_is_used_once_an_epoch_through_a_loss_and_a_newcomer(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT)
    finished = hvdrun("-np", "2", "--min-np", "1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] uses {4.0} of 2", "[1] uses {4.0} of 2"]


def test_an_evaluation_sees_each_sample_once_through_a_loss(hvdrun: Launcher) -> None:
    hvdrun.write("evaluate.py", EVALUATION)
    finished = hvdrun("-np", "3", "--min-np", "2", "python", "evaluate.py")
    assert finished.returncode == 0, finished.stderr
    expected = [[f"[{rank}] {epoch} {3 if epoch == 0 else 2} [1176.0, 48.0]" for epoch in range(3)] for rank in (0, 1)]
    lines = finished.stdout.splitlines()
    assert [[line for line in lines if line.startswith(f"[{rank}]")] for rank in (0, 1)] == expected


@pytest.mark.nightly
def test_the_notebook_trains_as_its_five_steps_do_to_the_last_bit(
    hvdrun: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in hvdrun.environment().items():
        monkeypatch.setenv(name, value)
    book = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]  # it ships no types
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert sum(len(cell.source.splitlines()) for cell in code) <= 40
    assert [cell.outputs for cell in code] == [[]] * len(code)
    book.cells.append(nbformat.v4.new_code_cell(BY_HAND))  # type: ignore[no-untyped-call]  # it ships no types
    resources = {"metadata": {"path": str(hvdrun.directory)}}
    nbclient.NotebookClient(book, timeout=LIMIT_SECONDS, resources=resources).execute()
    cells = (cell for cell in book.cells if cell.cell_type == "code")
    shown = ["".join(output.text for output in cell.outputs).splitlines() for cell in cells]
    # A start of more than a second shows its progress.
    printed = [[line for line in lines if not line.startswith("hvdrun: ")] for lines in shown]
    device, *reported = printed[2]
    assert device.endswith("; 2 workers on 1 host")
    assert [line.partition(":")[0] for line in reported] == [
        *(f"[0] epoch {epoch}" for epoch in range(5)),
        "accuracy on the training data",
    ]
    assert printed[3] == ["{True}"]
