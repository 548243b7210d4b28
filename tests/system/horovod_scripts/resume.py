"""Train with accumulation and momentum, and continue from a checkpoint, if any, as Horovod's ImageNet example."""

import hashlib
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE, BATCHES_PER_ALLREDUCE, EPOCHS = 16, 3, 3
CHECKPOINT = "checkpoint-{}.pth.tar"

hvd.init()
torch.manual_seed(42 + hvd.rank())
torch.set_num_threads(1)
found = [epoch for epoch in range(EPOCHS, 0, -1) if Path(CHECKPOINT.format(epoch)).exists()]
begin = hvd.broadcast(torch.tensor(max(found, default=0)), root_rank=0, name="resume_from_epoch").item()

images, labels, test_images, test_labels = torch.load(sys.argv[1])
dataset = TensorDataset(images, labels)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=BATCH_SIZE * BATCHES_PER_ALLREDUCE, sampler=sampler)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0125 * hvd.size(), momentum=0.9, weight_decay=5e-5)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=BATCHES_PER_ALLREDUCE
)
if begin > 0 and hvd.rank() == 0:
    checkpoint = torch.load(CHECKPOINT.format(begin))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(begin, EPOCHS):
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        for x, y in zip(data.split(BATCH_SIZE), target.split(BATCH_SIZE), strict=True):
            (functional.cross_entropy(model(x), y) / BATCHES_PER_ALLREDUCE).backward()
        optimizer.step()
    model.eval()
    mine = slice(hvd.rank(), None, hvd.size())
    right = (model(test_images[mine]).argmax(1) == test_labels[mine]).float().mean()
    right = hvd.allreduce(right, name="accuracy").item()
    if hvd.rank() == 0:
        print(f"Epoch #{epoch + 1}: {100 * right:.1f}%")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, CHECKPOINT.format(epoch + 1))

flat = nn.utils.parameters_to_vector(model.parameters()).detach()
print("parameters", hashlib.sha256(flat.numpy().tobytes()).hexdigest())
