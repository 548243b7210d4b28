"""Train on scikit-learn's handwritten digits, and continue when workers or hosts are lost or added.

    hvdrun -np 2 --min-np 1 --max-np 4 python examples/torch_digits_elastic.py

Kill a worker while it trains: the other workers complete the step, and a replacement joins at the next commit. With
hvdrun's `--checkpoint DIR` a job that receives a stop notice saves there, and continues when you start it again.
Without hvdrun, or in a job of a fixed size, the script trains like any other.
"""

import argparse

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import build_network, check_replicas, load_data, measure_accuracy, move

import worker_runtime.torch as hvd


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per worker and step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="makes a run repeatable (default: %(default)s)")
    parser.add_argument("--commit-every", type=int, default=10, help="steps between commits (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train, test, and compare the replicas."""
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(arguments.seed)
    train_data, test_data = load_data(arguments.seed)
    sampler = hvd.elastic.ElasticSampler(train_data, seed=arguments.seed)
    device = hvd.pin_device()  # this worker's GPU, or the CPU where there is none
    if hvd.rank() == 0:
        print(hvd.describe_device(device), flush=True)
    network = build_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=arguments.lr * hvd.size(), momentum=arguments.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

    def scale_learning_rate() -> None:
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * hvd.size()

    # Everything that a new worker needs to continue where the others are.
    state = hvd.elastic.TorchState(model=network, optimizer=optimizer, sampler=sampler, epoch=0)
    state.register_reset_callbacks([scale_learning_rate])
    train(state, train_data, arguments)

    check_replicas(network)
    accuracy = measure_accuracy(network, test_data)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.3f}", flush=True)
    hvd.shutdown()


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, data: TensorDataset, arguments: argparse.Namespace) -> None:
    """Train from the state's epoch on. hvd.elastic.run calls this again after a change of the job."""
    batches = DataLoader(data, batch_size=arguments.batch_size, sampler=state.sampler)
    while state.epoch < arguments.epochs:
        loss = train_epoch(state, batches, arguments)
        if hvd.rank() == 0:
            done = f"epoch {state.epoch + 1:2d} of {arguments.epochs}"
            print(f"{done}: loss {loss:.4f}, {hvd.size()} workers", flush=True)
        state.commit()  # after a loss, this restarts the function, to train on the lost worker's samples
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


def train_epoch(state: hvd.elastic.TorchState, batches: DataLoader, arguments: argparse.Namespace) -> float:
    """Train on the remaining samples of the epoch; return the mean loss over all workers."""
    state.model.train()
    device = next(state.model.parameters()).device
    total, steps = torch.zeros((), device=device), 0
    for images, labels in move(batches, device):
        state.optimizer.zero_grad()
        loss = functional.cross_entropy(state.model(images), labels)
        loss.backward()
        state.optimizer.step()
        state.sampler.record_batch(steps, len(labels))
        total += loss.detach()
        steps += 1
        if steps % arguments.commit_every == 0:
            state.commit()
    return hvd.allreduce(total / max(1, steps), name="loss").item()


if __name__ == "__main__":
    main()
