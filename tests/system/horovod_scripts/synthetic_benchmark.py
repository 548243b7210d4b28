"""Measure images per second on random data, in the form of Horovod's benchmark."""

import argparse
import timeit

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser(description="PyTorch Synthetic Benchmark")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--num-groups", type=int, default=0)
parser.add_argument("--use-adasum", action="store_true")

args = parser.parse_args()
args.cuda = torch.cuda.is_available()

hvd.init()

if args.cuda:
    torch.cuda.set_device(hvd.local_rank())

model = nn.Sequential(
    nn.Conv2d(3, args.width, 3),
    nn.BatchNorm2d(args.width),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(args.width, 1000),
)
lr_scaler = hvd.size() if not args.use_adasum else 1

if args.cuda:
    model.cuda()
    if args.use_adasum and hvd.nccl_built():
        lr_scaler = hvd.local_size()

optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * lr_scaler)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Adasum if args.use_adasum else hvd.Average,
    num_groups=args.num_groups,
)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

data = torch.randn(args.batch_size, 3, 16, 16)
target = torch.LongTensor(args.batch_size).random_() % 1000
if args.cuda:
    data, target = data.cuda(), target.cuda()


def benchmark_step() -> None:
    """One step."""
    optimizer.zero_grad()
    output = model(data)
    loss = functional.cross_entropy(output, target)
    loss.backward()
    optimizer.step()


def log(text: str) -> None:
    """Print on rank 0 only."""
    if hvd.rank() != 0:
        return
    print(text)


device = "GPU" if args.cuda else "CPU"
log(f"Batch size: {args.batch_size}")
log(f"Number of {device}s: {hvd.size()}")
timeit.timeit(benchmark_step, number=args.num_warmup_batches)

img_secs = []
for x in range(args.num_iters):
    time = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
    img_sec = args.batch_size * args.num_batches_per_iter / time
    log(f"Iter #{x}: {img_sec:.1f} img/sec per {device}")
    img_secs.append(img_sec)

img_sec_mean = np.mean(img_secs)
img_sec_conf = 1.96 * np.std(img_secs)
log(f"Img/sec per {device}: {img_sec_mean:.1f} +-{img_sec_conf:.1f}")
log(f"Total img/sec on {hvd.size()} {device}(s): {hvd.size() * img_sec_mean:.1f} +-{hvd.size() * img_sec_conf:.1f}")
