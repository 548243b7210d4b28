"""One line makes a script elastic: `hvdrun -np 2 --min-np 1 python examples/torch_elastic_one_line.py`."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import worker_runtime.torch as hvd

hvd.init()
device = hvd.pin_device()  # this worker's GPU, or the CPU where there is none
digits = load_digits()
data = TensorDataset(torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target))
loader = DataLoader(data, batch_size=32, shuffle=True)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
EPOCHS = 5
state = hvd.elastic.TorchState(epoch=0)
model, optimizer, loader = hvd.prepare(model, optimizer, loader, scale_lr=True, state=state)  # the line


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    """Train from the state's epoch on."""
    while state.epoch < EPOCHS:
        for step, (images, labels) in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                state.commit()  # new workers join here
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {hvd.size()} workers, loss {loss.item():.3f}", flush=True)
        state.epoch += 1


if hvd.rank() == 0:
    print(hvd.describe_device(device), flush=True)
train(state)
