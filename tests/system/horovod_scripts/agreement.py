"""Train small models in the many ways that scripts for Horovod do, each on its rows of one global batch.

Rank 0 writes what came out of each way, by its name: the parameters as one vector. With any number of workers that
divides the batch it should be the same.
"""

import argparse
from collections.abc import Callable, Iterator

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BATCH, FEATURES, CLASSES, STEPS = 12, 5, 3, 6


class Net(nn.Module):
    """Two layers, with what stands between them."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8, dtype=torch.float64)
        self.between = between
        self.last = nn.Linear(8, CLASSES, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the classes."""
        return self.last(torch.tanh(self.between(self.first(x))))


def take_rows() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's rows of each global batch."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=generator)
        y = torch.randint(CLASSES, (BATCH,), generator=generator)
        yield x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]


def begin(between: nn.Module | None = None) -> Net:
    """The same model on all ranks, though each has made its own."""
    torch.manual_seed(hvd.rank())
    model = Net(between or nn.Identity())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model


def distribute(model: nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> torch.optim.Optimizer:
    """As every script does it."""
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, forward: Callable | None = None) -> nn.Module:
    """The plain loop."""
    for x, y in take_rows():
        optimizer.zero_grad()
        functional.cross_entropy(model(x) if forward is None else forward(x), y).backward()
        optimizer.step()
    return model


def use_sgd(**options: object) -> nn.Module:
    """SGD with momentum and decay."""
    model = begin()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    return train(model, distribute(model, sgd, **options))


def list_groups() -> nn.Module:
    """Gradients of one layer travel together."""
    model = begin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, distribute(model, optimizer, groups=[list(model.last.parameters())]))


def clip_adamw_on_schedule() -> nn.Module:
    """The clipping that the docstring of the optimizer shows, and a scheduler made before wrapping."""
    model = begin()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(adamw, step_size=2, gamma=0.5)
    optimizer = distribute(model, adamw)
    for x, y in take_rows():
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        with optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
    return model


def accumulate() -> nn.Module:
    """Two backward passes for each step."""
    model = begin()
    optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2)
    for x, y in take_rows():
        optimizer.zero_grad()
        for part in range(2):
            functional.cross_entropy(model(x[part::2]), y[part::2]).div(2).backward()
        optimizer.step()
    return model


def normalise() -> nn.Module:
    """Batch normalisation over all ranks; the running statistics count too."""
    model = begin(hvd.SyncBatchNorm(8, dtype=torch.float64))
    train(model, distribute(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    model.register_parameter("mean", nn.Parameter(model.between.running_mean))
    model.register_parameter("var", nn.Parameter(model.between.running_var))
    return model


def scale(*, by_hand: bool) -> nn.Module:
    """A gradient scaler, in both orders that users write; the last rank meets an infinity in the third step."""
    model = begin()
    optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step, (x, y) in enumerate(take_rows()):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        bad = float("inf") if step == 2 and hvd.rank() == hvd.size() - 1 else 1.0
        scaler.scale(loss * bad).backward()
        if by_hand:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
    model.register_parameter("scale", nn.Parameter(torch.tensor([scaler.get_scale()], dtype=torch.float64)))
    return model


def checkpoint_activations() -> nn.Module:
    """What lies between the layers is computed again in backward."""
    between = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), nn.ReLU())
    model = begin(between)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model.last(checkpoint(between, model.first(x), use_reentrant=False))

    return train(model, distribute(model, torch.optim.SGD(model.parameters(), lr=0.1)), forward)


def compile_model() -> nn.Module:
    """All of torch.compile but the last part, for which it would need a C++ compiler, and half a minute."""
    model = begin()
    optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return train(model, optimizer, torch.compile(model, backend="aot_eager"))


def use_a_head_each() -> nn.Module:
    """Each row has one of three layers: with three ranks two layers have no gradient, on each rank other ones."""
    torch.manual_seed(hvd.rank())
    heads = nn.ModuleList(nn.Linear(FEATURES, 1, dtype=torch.float64) for _ in range(CLASSES))
    hvd.broadcast_parameters(heads.state_dict(), root_rank=0)
    optimizer = distribute(heads, torch.optim.SGD(heads.parameters(), lr=0.1), op=hvd.Sum)
    for x, _ in take_rows():
        optimizer.zero_grad()
        places = range(hvd.rank(), BATCH, hvd.size())
        loss = sum(heads[place % CLASSES](row).square().sum() for place, row in zip(places, x, strict=True))
        (loss / BATCH).backward()
        optimizer.step()
    return heads


def embed(**options: object) -> nn.Module:
    """An embedding with sparse gradients."""
    torch.manual_seed(hvd.rank())
    model = nn.Embedding(CLASSES, 2, sparse=True, dtype=torch.float64)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), **options)
    for _, y in take_rows():
        optimizer.zero_grad()
        (model(y) - 1).square().mean().backward()
        optimizer.step()
    return model


def step_with_closure() -> nn.Module:
    """LBFGS computes the loss as often as it wants."""
    model = begin()
    optimizer = distribute(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))
    for x, y in take_rows():

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def thaw() -> nn.Module:
    """The first layer is frozen for three steps; another one comes in with a group of its own."""
    model = begin(nn.Linear(8, 8, dtype=torch.float64))
    model.first.requires_grad_(requires_grad=False)
    known = [*model.first.parameters(), *model.last.parameters()]
    optimizer = distribute(model, torch.optim.SGD(known, lr=0.1))
    for step, (x, y) in enumerate(take_rows()):
        if step == 2:
            optimizer.add_param_group({"params": list(model.between.parameters()), "lr": 0.2})
        if step == 3:
            model.first.requires_grad_(requires_grad=True)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def play() -> nn.Module:
    """A generator against a discriminator, whose gradients from the generator's pass are thrown away."""
    torch.manual_seed(hvd.rank())
    maker = nn.Linear(2, FEATURES, dtype=torch.float64)
    judge = nn.Sequential(nn.Linear(FEATURES, 1, dtype=torch.float64), nn.Sigmoid())
    both = nn.ModuleDict({"maker": maker, "judge": judge})
    hvd.broadcast_parameters(both.state_dict(), root_rank=0)
    made = distribute(maker, torch.optim.SGD(maker.parameters(), lr=0.1))
    judged = distribute(judge, torch.optim.SGD(judge.parameters(), lr=0.1))
    for x, _ in take_rows():
        false = maker(x[:, :2])
        judged.zero_grad()
        (judge(false.detach()).mean() - judge(x).mean()).backward()
        judged.step()
        made.zero_grad()
        (-judge(false).mean()).backward()
        made.step()
    return both


def average_metrics() -> nn.Module:
    """Autograd through collectives: a loss on the features of all ranks, as contrastive ones are."""
    model = begin()
    optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum)
    for x, _ in take_rows():
        optimizer.zero_grad()
        scores = hvd.allgather(model(x), name="scores")
        scores.mean(0).square().sum().backward()
        optimizer.step()
    return model


WAYS: dict[str, Callable[[], nn.Module]] = {
    "sgd": use_sgd,
    "predivided": lambda: use_sgd(gradient_predivide_factor=2.0),
    "two groups": lambda: use_sgd(groups=2),
    "listed groups": list_groups,
    "fp16": lambda: use_sgd(compression=hvd.Compression.fp16),
    "bf16": lambda: use_sgd(compression=hvd.Compression.bf16),
    "clipped AdamW": clip_adamw_on_schedule,
    "accumulated": accumulate,
    "normalised": normalise,
    "scaled": lambda: scale(by_hand=False),
    "scaled by hand": lambda: scale(by_hand=True),
    "checkpointed": checkpoint_activations,
    "heads": use_a_head_each,
    "sparse": embed,
    "sparse as dense": lambda: embed(sparse_as_dense=True),
    "closure": step_with_closure,
    "thawed": thaw,
    "two optimizers": play,
    "gathered": average_metrics,
    "compiled": compile_model,
}


def main() -> None:
    """Try every way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    args = parser.parse_args()
    hvd.init()
    found = {}
    for name, way in WAYS.items():
        flat = nn.utils.parameters_to_vector(way().parameters()).detach()
        if not torch.equal(hvd.allreduce(flat, op=hvd.Min, name=name), flat):
            print(f"{name}: rank {hvd.rank()} differs from another")
        found[name] = flat
    if hvd.rank() == 0:
        torch.save(found, args.results)


if __name__ == "__main__":
    main()
