"""`Snapshot`: what one life of a worker has saved, the next one continues from; what it refuses."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots import free_memory, shortage
from worker_runtime.snapshots.choice import Summary
from worker_runtime.snapshots.process_group import Alone
from worker_runtime.torch import Snapshot


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Life:
    """A training, as a new process has it."""

    def __init__(self, life: int, **options: Any) -> None:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(life)
        torch.manual_seed(life)
        random.seed(life)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        values = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "step": 0}
        self.snapshot: Any = Snapshot(**values, history=[], **options)

    def train(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.rand(8, 3) * random.random()).sum().backward()  # noqa: S311 - the global one
            self.optimizer.step()
            self.schedule.step()
            self.snapshot.step += 1
            self.snapshot.history.append(self.schedule.get_last_lr()[0])
            self.snapshot.save()

    def show(self) -> object:
        """All that a continued training has in common with one that was not interrupted."""
        tensors = [*self.model.state_dict().values()]
        states = self.optimizer.state_dict()["state"]
        tensors += [states[number][name] for number in states for name in sorted(states[number])]
        numbers = self.snapshot.step, self.snapshot.history, self.optimizer.param_groups[0]["lr"]
        return [tensor.tolist() for tensor in tensors], numbers, torch.rand(1).item(), random.random()  # noqa: S311 - the global one

    def end(self) -> None:
        """Let go of the memory."""
        self.snapshot._await_writer()
        del self.snapshot


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored after the test."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")


def begin(**given: Any) -> Any:
    """A Snapshot in the first round."""
    kept = Snapshot(**given)
    assert not kept.restore()
    return kept


def begin_next_round() -> None:
    """As another process has it."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"


@pytest.mark.parametrize("options", [{}, {"in_background": True}])
def test_a_later_life_continues_bit_for_bit(slot: int, options: dict[str, Any]) -> None:
    whole = Life(0, **options)
    assert not whole.snapshot.restore()
    whole.train(6)
    expected = whole.show()
    whole.end()
    os.ftruncate(slot, 0)

    first = Life(0, **options)
    assert not first.snapshot.restore()
    first.train(3)
    first.end()
    for life in (1, 2):  # the second one finds what the first one has not overwritten
        following = Life(life, **options)
        assert following.snapshot.restore()
        assert following.snapshot.step == 2 + life
        following.train(1 if life == 1 else 2)
        if life == 2:
            assert following.show() == expected
        following.end()


def test_a_restored_training_does_not_write_into_the_snapshot(slot: int) -> None:
    assert slot
    first = Life(0)
    assert not first.snapshot.restore()
    first.train(3)
    first.end()
    shown = []
    for life in (1, 2):
        following = Life(life, every=100)
        following.snapshot.restore()
        shown.append(following.show())
        following.train(2)
        following.end()
    assert shown[0] == shown[1]


def test_a_process_that_the_program_starts_does_not_inherit_the_memory(slot: int) -> None:
    os.set_inheritable(slot, True)  # noqa: FBT003 - os's signature
    kept = begin(step=0)
    assert not os.get_inheritable(slot)
    worker = os.fork()
    if worker == 0:
        kept.step = 1
        kept.save()  # in a worker of a DataLoader, say
        os._exit(0)
    os.waitpid(worker, 0)
    del kept
    begin_next_round()
    assert not Snapshot(step=0).restore()


def test_one_of_several_saves_is_kept(slot: int) -> None:
    assert slot
    first = Life(0, every=3)
    assert not first.snapshot.restore()
    first.train(8)
    first.end()
    following = Life(1, every=3)
    assert following.snapshot.restore()
    assert following.snapshot.step == 6
    following.end()


def test_a_model_is_the_same_with_ddp(slot: int, alone: None) -> None:
    assert (slot, alone) == (slot, None)
    model = torch.nn.Linear(2, 2)
    kept = begin(model=DistributedDataParallel(model))
    kept.save()
    del kept
    begin_next_round()
    other = torch.nn.Linear(2, 2)
    assert Snapshot(model=other).restore()
    assert torch.equal(other.weight, model.weight)


def test_tensors_of_any_form_are_kept(slot: int) -> None:
    assert slot
    values = {
        "bits": torch.tensor([True, False]),
        "halves": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        "number": torch.tensor(3.5),
        "nothing": torch.empty(0, 4),
        "sparse": torch.eye(2).to_sparse(),
        "nested": {"list": [torch.ones(1), (torch.zeros(2), "text")]},
    }
    kept = begin(**values)
    kept.save()
    del kept
    begin_next_round()
    found = Snapshot(**dict.fromkeys(values))
    assert found.restore()
    assert torch.equal(found.bits, values["bits"])
    assert torch.equal(found.halves, values["halves"])
    assert found.halves.dtype is torch.bfloat16
    assert (found.number.item(), found.nothing.shape) == (3.5, (0, 4))
    assert torch.equal(found.sparse.to_dense(), torch.eye(2))
    assert found.nested["list"][1][1] == "text"


@pytest.mark.usefixtures("slot")
@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            {"model": torch.nn.Linear(2, 2)},
            "the snapshot has model, step, and this program keeps model: start a new job",
        ),
        ({"model": torch.nn.Linear(2, 3), "step": 0}, r"model cannot load its snapshot \(.*size mismatch.*\); start"),
    ],
)
def test_another_set_of_names_or_shapes_is_refused(other: dict[str, Any], sentence: str) -> None:
    kept = begin(model=torch.nn.Linear(2, 2), step=0)
    kept.save()
    del kept
    begin_next_round()
    with pytest.raises(SnapshotError, match=sentence):
        Snapshot(**other).restore()


@pytest.mark.usefixtures("slot")
def test_the_state_of_another_optimizer_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    kept = begin(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    kept.save()
    del kept
    begin_next_round()
    with pytest.raises(SnapshotError, match=r"optimizer cannot load its snapshot \(ValueError: the state has no betas"):
        Snapshot(optimizer=torch.optim.Adam(model.parameters())).restore()


def test_a_job_without_restarts_keeps_nothing_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HVD_JOB", "job")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        kept = Snapshot(step=0)
        assert not kept.restore()
        kept.step = 1
        kept.save()
    sentence = "hvdrun: Snapshot keeps nothing: this job starts no worker again; give hvdrun --max-restarts.\n"
    assert capfd.readouterr().err == sentence


def test_a_number_of_another_file_is_no_memory(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HVD_SNAPSHOT_FD", "0")
    assert not Snapshot(step=0).restore()
    assert "hvdrun has not started this program" in capfd.readouterr().err


@pytest.mark.usefixtures("slot")
def test_a_lost_snapshot_is_named_in_the_next_round(capfd: pytest.CaptureFixture[str]) -> None:
    assert not Snapshot(step=0).restore()
    begin_next_round()
    assert not capfd.readouterr().err
    assert not Snapshot(step=0).restore()
    assert "no host has a snapshot of the rounds before: restore() gives False" in capfd.readouterr().err


def test_a_program_that_closes_the_memory_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"HVD_JOB": "job", "TORCHELASTIC_MAX_RESTARTS": "1", "HVD_SNAPSHOT_FD": "0"}.items():
        monkeypatch.setenv(name, value)
    Snapshot(step=0)
    assert "a program between hvdrun and this one closed descriptor 0" in capfd.readouterr().err


def test_a_worker_without_memory_in_a_job_with_restarts_asks_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HVD_JOB", "job")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    asked: list[object] = []
    monkeypatch.setattr(Alone, "gather", lambda _, value: asked.append(value) or [value])
    kept = Snapshot(step=0)
    assert not kept.restore()
    kept.save()
    assert asked == [Summary(("step",))]
    assert "the agent of this host could make no memory for it" in capfd.readouterr().err


@pytest.mark.usefixtures("slot")
def test_too_little_memory_is_refused_before_the_first_save(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1000 kB\n")
    monkeypatch.setattr(shortage, "find_shortage", lambda needed: free_memory.find_shortage(needed, tmp_path))
    kept = begin(weight=torch.zeros(1 << 20))
    with pytest.raises(
        SnapshotError, match="two copies of the state need 8192 KiB on each host, and the memory of this"
    ):
        kept.save()


@pytest.mark.usefixtures("slot")
def test_one_snapshot_has_all() -> None:
    kept = begin(step=0)
    with pytest.raises(SnapshotError, match="this worker has another Snapshot: give all objects and values to one"):
        Snapshot(step=0)
    with pytest.raises(AttributeError, match="this Snapshot has no 'epoch': give it to the constructor"):
        kept.epoch = 1
    with pytest.raises(AttributeError, match="this Snapshot has no 'epoch'"):
        _ = kept.epoch
    kept.step = lambda: None
    with pytest.raises(SnapshotError, match=r"^step cannot be pickled: \w+: .*lambda"):
        kept.save()


@pytest.mark.usefixtures("slot")
def test_an_object_is_not_blamed_for_what_its_state_has_not() -> None:
    model: Any = torch.nn.Linear(1, 1)
    model.activation = lambda x: x
    kept = begin(model=model, step=0)
    kept.step = lambda: None
    with pytest.raises(SnapshotError, match=r"^step cannot be pickled"):
        kept.save()


class Faulty:
    """An object whose state_dict() has a fault."""

    def state_dict(self) -> NoReturn:
        """Raise an error."""
        raise LookupError("of the program")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Unused."""


@pytest.mark.usefixtures("slot")
def test_an_error_of_a_state_dict_is_the_programs_own() -> None:
    kept = begin(app=Faulty())
    with pytest.raises(LookupError, match="of the program"):
        kept.save()


@pytest.mark.usefixtures("slot")
@pytest.mark.parametrize("options", [{}, {"in_background": True}])
def test_values_without_a_tensor_are_kept(options: dict[str, Any]) -> None:
    first = begin(step=0, **options)
    first.step = 3
    first.save()
    first._await_writer()
    del first
    begin_next_round()
    second: Any = Snapshot(step=0)
    assert second.restore()
    assert second.step == 3


@pytest.mark.usefixtures("slot")
def test_a_round_that_has_not_restored_cannot_save() -> None:
    first = begin(step=1)
    first.save()
    del first
    begin_next_round()
    second: Any = Snapshot(step=0)
    with pytest.raises(SnapshotError, match=r"call restore\(\) in each round, before save"):
        second.save()
    assert second.restore()
    assert second.step == 1


@pytest.mark.usefixtures("slot")
def test_a_second_training_of_one_round_does_not_continue_from_the_first_one() -> None:
    first = begin(step=0)
    first.step = 1
    first.save()
    first.step = 2
    assert first.restore()  # its own save
    assert first.step == 1
    del first
    with pytest.raises(SnapshotError, match="another Snapshot of this worker has saved in this round"):
        Snapshot(step=0).restore()


@pytest.mark.usefixtures("slot")
def test_a_restore_finds_the_save_that_is_still_in_the_background() -> None:
    kept = begin(weight=torch.zeros(1 << 22), step=0, in_background=True)
    for kept.step in range(1, 5):
        kept.save()
    assert kept.restore()
    assert kept.step == 4


@pytest.mark.usefixtures("slot")
def test_ranks_without_a_process_group_get_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SnapshotError, match=r"call torch\.distributed\.init_process_group\(\) before"):
        Snapshot(step=0).restore()


@pytest.mark.parametrize("words", [{"save": 1}, {"every": 0}, {"every": "2"}])
def test_wrong_words_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError, match=r"the name 'save'|every is (0|'2'):"):
        Snapshot(**words)
