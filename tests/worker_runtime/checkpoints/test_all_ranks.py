"""States that are saved to a folder and loaded from it, by all ranks together."""

import contextlib
import io
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.checkpoints import all_ranks
from worker_runtime.errors import CheckpointError, HostsUpdatedInterrupt
from worker_runtime.torch.elastic import state as states

BATCH, EPOCHS = 2, 2


class Net(torch.nn.Module):
    """Uses its layers in another order than it has them: buckets are planned otherwise once that is known."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last = torch.nn.Linear(width, 1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(6))
        self.first = torch.nn.Linear(8, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number for each row."""
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(torch.nn.functional.dropout(x))  # type: ignore[no-any-return]  # torch has Any there


class Training:
    """One job's: made anew, with a seed of each rank's own."""

    def __init__(self, seed: int, width: int, how: str, samples: int) -> None:
        for set_seed in (torch.manual_seed, random.seed, np.random.seed):
            set_seed(seed + hvd.rank())
        model = Net(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.data = torch.arange(samples * 8.0).reshape(samples, 8) / samples / 8
        self.seen: list[int] = []
        self.losses: list[float] = []
        self.records = how == "by hand"
        if not self.records:
            self.state = hvd.elastic.TorchState(epoch=0)
            loader = DataLoader(self.data, batch_size=BATCH, shuffle=True)
            *_, self.loader = hvd.prepare(model, optimizer, loader, state=self.state, pin_device=False)
        else:
            sampler = hvd.elastic.ElasticSampler(self.data)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            self.state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
            self.loader = DataLoader(self.data, batch_size=BATCH, sampler=sampler)

    def train(self, folder: Path, stop: float = -1) -> int:
        """Train to the end, or save at this step, or half a step later, between epochs; how many steps were made."""
        return hvd.elastic.run(lambda _: self._train(folder, stop))(self.state)

    def _train(self, folder: Path, stop: float) -> int:
        steps, state = 0, self.state
        while state.epoch < EPOCHS:
            for batch in self.loader:
                state.optimizer.zero_grad()
                noise = 0.1 * (random.random() + float(np.random.rand()))  # noqa: S311, NPY002 - the global ones are kept
                loss = state.model(batch + noise).square().mean()
                loss.backward()
                state.optimizer.step()
                if self.records:
                    state.sampler.record_batch(0, len(batch))
                self.seen += (batch[:, 0] * len(self.data)).round().int().tolist()
                self.losses.append(loss.item())
                steps += 1
                if steps == stop:
                    state.save(folder)
                    return steps
            state.epoch += 1
            if self.records:
                state.sampler.set_epoch(state.epoch)
            if steps + 0.5 == stop:
                state.save(folder)
                return steps
        return steps


def describe(training: Training) -> list[torch.Tensor]:
    state: Any = training.state
    momenta = [values["momentum_buffer"] for values in state.optimizer.state_dict()["state"].values()]
    return [tensor.clone() for tensor in (*state.model.state_dict().values(), *momenta)]


def compare_resumed(folder: str, width: int, how: str, samples: int, stops: int) -> list[int]:
    """At which steps a stop has made a difference, of as many as are asked for."""
    whole = Training(0, width, how, samples)
    steps = whole.train(Path(folder))
    choose, different = random.Random(7), []  # noqa: S311 - no secret
    for stop in [1, steps / EPOCHS + 0.5, *(choose.randint(2, steps - 1) for _ in range(stops))]:
        stopped = Training(0, width, how, samples)
        stopped.train(Path(folder), stop)
        resumed = Training(99, width, how, samples)
        assert resumed.state.load(folder)
        assert resumed.train(Path(folder)) == steps - int(stop)
        pairs = zip(describe(whole), describe(resumed), strict=True)
        losses = stopped.losses + resumed.losses
        if losses != whole.losses or not all(torch.equal(one, other) for one, other in pairs):
            different.append(stop)
    return different


@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        (2, (16, "by hand", 23, 2)),
        (2, (16, "prepared", 23, 2)),
        (3, (300, "by hand", 23, 1)),
        pytest.param(2, (16, "by hand", 101, 50), marks=pytest.mark.nightly),
        pytest.param(3, (16, "prepared", 101, 50), marks=pytest.mark.nightly),
    ],
)
def test_a_resumed_training_of_the_same_size_is_equal_to_the_last_bit(
    ranks: RankPool, tmp_path: Path, size: int, arguments: tuple[object, ...]
) -> None:
    """With 300 columns gradients travel in buckets of which gloo sums the parts in different orders."""
    assert ranks.run(compare_resumed, str(tmp_path), *arguments, size=size, limit_seconds=110) == [[]] * size


def train_part(folder: str, stop: int) -> tuple[list[int], int]:
    """Train from where the folder says, 30 samples an epoch, and save after so many steps."""
    training = Training(0, 4, "by hand", 30)
    resets: list[int] = []
    training.state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    assert training.state.load(folder) is any(Path(folder).iterdir())
    training.train(Path(folder), stop)
    return training.seen, len(resets)


def test_a_job_of_any_size_continues_in_mid_epoch_and_each_sample_counts_once_an_epoch(
    ranks: RankPool, tmp_path: Path
) -> None:
    """3 * 2 * 2 samples, then 2 * 2 * 4, and 2 of the epoch are left; a change of the size resets what hangs on it."""
    parts = [(3, 2, 0), (2, 3, 1), (2, 1, 0), (1, -1, 1)]
    seen: list[int] = []
    for size, stop, resets in parts:
        outcomes = ranks.run(train_part, str(tmp_path), stop, size=size)
        assert [count for _, count in outcomes] == [resets] * size
        if size > 1:
            seen += [index for indices, _ in outcomes for index in indices]
        else:
            ((last, _),) = outcomes
    assert sorted(seen + last[:2]) == list(range(30))
    assert sorted(last[2:]) == list(range(30))


def test_an_error_of_rank_0_is_raised_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    def body(folder: Path) -> list[str]:
        state = hvd.elastic.TorchState(torch.nn.Linear(100, 100), epoch=hvd.rank())
        other = hvd.elastic.TorchState(torch.nn.Linear(9, 9), epoch=3, best=1.0)
        sentences = []

        def attempt(call: Callable[[Path], object], folder: Path) -> None:
            with pytest.raises(CheckpointError) as caught:
                call(folder)
            sentences.append(str(caught.value))

        (folder / "file").touch()
        attempt(state.save, folder / "file")
        attempt(state.load, folder / "file")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))  # as if the disk were full
        attempt(state.save, folder / "full")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        state.save(folder / "good")
        attempt(other.load, folder / "good")
        del other._saved_state["best"]
        attempt(other.load, folder / "good")
        state.epoch = lambda: 1
        attempt(state.save, folder / "good")
        attempt(state.load, folder / ("full" if hvd.rank() == 0 else "good"))  # as if each host had its own
        assert state.load(folder / "full") is state.load(folder / "nothing") is False
        return sentences

    first, second = ranks.run(body, tmp_path)
    assert first == second
    for sentence, words in zip(
        first,
        (
            f"no checkpoint can be written to {tmp_path}/file: File exists; free space there, or give a folder",
            f"the checkpoints in {tmp_path}/file cannot be listed: Not a directory; give a folder",
            f"no checkpoint can be written to {tmp_path}/full: File too large; free space there",
            "000001.pt does not fit this program: it has epoch, model, optimizer, and the state has best, epoch, ",
            "does not fit this program: model: Error(s) in loading state_dict for Linear: size mismatch for weight",
            "; the state must be picklable",
            f"rank 1 sees a newer checkpoint in {tmp_path}/full than rank 0 does; give a folder that all hosts share",
        ),
        strict=True,
    ):
        assert words in sentence
    assert [path.name for path in (tmp_path / "good").iterdir()] == ["checkpoint-000001.pt"]


def test_messages_name_skipped_and_loaded_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a program that is no job."""
    state = hvd.elastic.ObjectState(lambda value: value, lambda: 0, epoch=1)
    for state.epoch in (1, 2):
        state.save(tmp_path)
    newest = tmp_path / "checkpoint-000002.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert all_ranks.load(state, tmp_path, lambda value: value, lambda value, _: [value], 0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[1:3] for line in lines] == [["the", "checkpoint"], ["continuing", "from"]]
    assert state.epoch == 1


def test_a_checkpoint_keeps_registered_handlers_and_object_states_and_refuses_a_bare_state(
    ranks: RankPool, tmp_path: Path
) -> None:
    def body(folder: Path) -> object:
        class Handler(states.StateHandler):
            """Keeps a set as any object is kept that pickle takes."""

            def save(self) -> None:
                self.saved = set(self.value)

            def restore(self) -> None:
                self.value = set(self.saved)

            def sync(self) -> None:
                self.value = hvd.broadcast_object(self.value)
                self.save()

        class Own(hvd.elastic.State):
            def save(self) -> None:
                """Nothing."""

        before = states.get_handler_registry()
        states.set_handler_registry([(set, Handler), *before])
        try:
            hvd.elastic.TorchState(seen={1, 2}).save(folder)
            state = hvd.elastic.TorchState(seen=set())
            assert state.load(folder)
        finally:
            states.set_handler_registry(before)
        with pytest.raises(CheckpointError, match="a Own cannot be saved in a checkpoint; derive it from"):
            Own(hvd.broadcast_object, hvd.rank).load(folder)
        plain = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=hvd.rank() + 4)
        plain.save(folder)
        plain.epoch = 9
        return state._handlers["seen"].value, plain.load(folder), plain.epoch

    assert ranks.run(body, tmp_path) == [({1, 2}, True, 4)] * 2


def test_an_optimizer_s_state_keeps_its_dtype(ranks: RankPool, tmp_path: Path) -> None:
    """Torch would change it to the parameter's."""

    def body(folder: Path) -> object:
        parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        optimizers = [torch.optim.SGD([parameter], momentum=0.9) for _ in range(2)]
        exact = torch.tensor([1 / 3, 2 / 3])
        optimizers[0].state[parameter]["momentum_buffer"] = exact
        hvd.elastic.TorchState(optimizer=optimizers[0]).save(folder)
        hvd.elastic.TorchState(optimizer=optimizers[1]).load(folder)
        return torch.equal(optimizers[1].state[parameter]["momentum_buffer"], exact)

    assert ranks.run(body, tmp_path) == [True] * 2


def test_a_function_begins_with_the_newest_checkpoint_of_the_job_once(ranks: RankPool, tmp_path: Path) -> None:
    def body(folder: Path) -> object:
        begun: list[int] = []
        said = io.StringIO()

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            begun.append(state.epoch)
            state.epoch += 1
            if len(begun) == 1:
                raise HostsUpdatedInterrupt

        os.environ["HVD_CHECKPOINT"] = str(folder)
        try:
            for epoch in (3 + hvd.rank(), 30):
                state = hvd.elastic.TorchState(epoch=epoch)
                with contextlib.redirect_stderr(said):
                    train(state)
                    train(state)
                state.save(folder)
        finally:
            del os.environ["HVD_CHECKPOINT"]
        return begun, said.getvalue()

    said = f"hvdrun: continuing from {tmp_path}/checkpoint-000001.pt\n"
    assert ranks.run(body, tmp_path) == [([3, 4, 5, 6, 7], said), ([3, 4, 5, 6, 7], "")]
