"""One line distributes a PyTorch script: `hvdrun -np 2 python examples/torch_one_line.py`."""

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

model, optimizer, loader = hvd.prepare(model, optimizer, loader, scale_lr=True)  # the line

if hvd.rank() == 0:
    print(hvd.describe_device(device), flush=True)
for epoch in range(5):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {mean:.3f}", flush=True)
