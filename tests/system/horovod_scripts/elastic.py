"""Train under `elastic.run`, in the form of Horovod's elastic examples, in a job that nothing happens to."""

import argparse
import hashlib

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="PyTorch MNIST Elastic Example")
parser.add_argument("--data", default="digits.pt")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--batches-per-commit", type=int, default=10)
args = parser.parse_args()

hvd.init()
lr = args.lr
torch.manual_seed(hvd.rank())
images, labels, test_images, test_labels = torch.load(args.data)
train_dataset = TensorDataset(images, labels)
train_sampler = hvd.elastic.ElasticSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
)


def train(state: hvd.elastic.TorchState) -> None:
    """The rest of an epoch."""
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader, start=state.batch):
        state.batch = batch_idx
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        train_sampler.record_batch(batch_idx, args.batch_size)
        if batch_idx % args.batches_per_commit == 0:
            state.commit()
    state.batch = 0


def test() -> None:
    """The accuracy over the test data, of which each rank has its part."""
    model.eval()
    mine = slice(hvd.rank(), None, hvd.size())
    right = (model(test_images[mine]).argmax(1) == test_labels[mine]).float().mean()
    accuracy = hvd.allreduce(right, name="avg_accuracy")
    if hvd.rank() == 0:
        print(f"Accuracy: {100.0 * accuracy.item():.2f}%")


@hvd.elastic.run
def full_train(state: hvd.elastic.TorchState) -> None:
    """All epochs."""
    while state.epoch < args.epochs:
        train(state)
        test()
        state.epoch += 1
        train_sampler.set_epoch(state.epoch)
        state.commit()


def on_state_reset() -> None:
    """The size has changed, and with it the rate."""
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * hvd.size()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, train_sampler=train_sampler, epoch=0, batch=0)
state.register_reset_callbacks([on_state_reset])
full_train(state)
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
print("parameters", hashlib.sha256(flat.numpy().tobytes()).hexdigest())
