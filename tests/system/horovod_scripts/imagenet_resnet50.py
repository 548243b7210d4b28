"""Train a residual network with warm-up, accumulation and checkpoints, in the form of Horovod's ImageNet example."""

import argparse
import hashlib
import math
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description="PyTorch ImageNet Example")
parser.add_argument("--data", default="digits.pt")
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--batches-per-allreduce", type=int, default=1)
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--val-batch-size", type=int, default=50)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--base-lr", type=float, default=0.0125)
parser.add_argument("--warmup-epochs", type=float, default=2)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=0.00005)
parser.add_argument("--seed", type=int, default=42)


class ResNet(nn.Module):
    """A stem, a residual block and a linear layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.fc = nn.Linear(width * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the ten digits."""
        x = functional.relu(self.stem(x))
        x = functional.max_pool2d(functional.relu(x + self.block(x)), 2)
        return self.fc(x.flatten(1))


class Metric:
    """A mean over ranks and batches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, val: torch.Tensor) -> None:
        """Add a batch."""
        self.sum += hvd.allreduce(val.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self) -> torch.Tensor:
        """The mean."""
        return self.sum / self.n


def train(epoch: int) -> None:
    """One epoch, in which a step takes several batches."""
    model.train()
    train_sampler.set_epoch(epoch)
    train_loss = Metric("train_loss")
    train_accuracy = Metric("train_accuracy")
    for batch_idx, (data, target) in enumerate(train_loader):
        adjust_learning_rate(epoch, batch_idx)
        optimizer.zero_grad()
        for i in range(0, len(data), args.batch_size):
            data_batch = data[i : i + args.batch_size]
            target_batch = target[i : i + args.batch_size]
            output = model(data_batch)
            train_accuracy.update(accuracy(output, target_batch))
            loss = functional.cross_entropy(output, target_batch)
            train_loss.update(loss)
            loss.div_(math.ceil(float(len(data)) / args.batch_size))
            loss.backward()
        optimizer.step()
    if verbose:
        print(f"Train Epoch #{epoch + 1}: loss {train_loss.avg.item():.4f}, {100.0 * train_accuracy.avg.item():.1f}%")


def validate(epoch: int) -> None:
    """Loss and accuracy on the test data."""
    model.eval()
    val_loss = Metric("val_loss")
    val_accuracy = Metric("val_accuracy")
    with torch.no_grad():
        for data, target in val_loader:
            output = model(data)
            val_loss.update(functional.cross_entropy(output, target))
            val_accuracy.update(accuracy(output, target))
    if verbose:
        print(f"Validate Epoch #{epoch + 1}: loss {val_loss.avg.item():.4f}, {100.0 * val_accuracy.avg.item():.1f}%")


def adjust_learning_rate(epoch: float, batch_idx: int) -> None:
    """Warm up from the rate of one worker to that of all, then decay."""
    if epoch < args.warmup_epochs:
        epoch += float(batch_idx + 1) / len(train_loader)
        lr_adj = 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / args.warmup_epochs + 1)
    elif epoch < 30:
        lr_adj = 1.0
    else:
        lr_adj = 1e-1
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * lr_adj


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The share of right answers."""
    pred = output.max(1, keepdim=True)[1]
    return pred.eq(target.view_as(pred)).cpu().float().mean()


def save_checkpoint(epoch: int) -> None:
    """On rank 0 only."""
    if hvd.rank() == 0:
        filepath = args.checkpoint_format.format(epoch=epoch + 1)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, filepath)


if __name__ == "__main__":
    args = parser.parse_args()
    allreduce_batch_size = args.batch_size * args.batches_per_allreduce
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())

    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if Path(args.checkpoint_format.format(epoch=try_epoch)).exists():
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = hvd.broadcast(torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch").item()
    verbose = 1 if hvd.rank() == 0 else 0
    torch.set_num_threads(1)

    images, labels, test_images, test_labels = torch.load(args.data)
    train_dataset, val_dataset = TensorDataset(images, labels), TensorDataset(test_images, test_labels)
    train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_dataset, batch_size=allreduce_batch_size, sampler=train_sampler)
    val_sampler = DistributedSampler(val_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    val_loader = DataLoader(val_dataset, batch_size=args.val_batch_size, sampler=val_sampler)

    model = ResNet()
    lr_scaler = args.batches_per_allreduce * hvd.size() if not args.use_adasum else 1
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.base_lr * lr_scaler, momentum=args.momentum, weight_decay=args.wd
    )
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(resume_from_epoch, args.epochs):
        train(epoch)
        validate(epoch)
        save_checkpoint(epoch)

    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    print("parameters", hashlib.sha256(flat.numpy().tobytes()).hexdigest())
