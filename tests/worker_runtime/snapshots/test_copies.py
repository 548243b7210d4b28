"""When a thread may read copies, and when a host may go on; with stubs in the place of GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker_runtime.snapshots.copies import Pace, note_streams


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What two GPUs are told."""
    said: list[str] = []

    class Stream:
        """As torch's."""

        def __init__(self, device: str, *, is_present: bool = False) -> None:
            self.name = f"{'present' if is_present else 'new'} {device}"

        def record_event(self) -> SimpleNamespace:
            """Count them."""
            name = f"{self.name}.{len(said)}"
            said.append(f"record {name}")
            return SimpleNamespace(name=name, synchronize=lambda: said.append(f"await {name}"))

        def wait_event(self, event: Any) -> None:
            """Note it."""
            said.append(f"{self.name} waits for {event.name}")

    @contextmanager
    def enter(stream: Stream) -> Iterator[None]:
        said.append(f"enter {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device="0": Stream(device, is_present=True))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    return said


def test_a_copy_waits_for_the_streams_of_all_devices(said: list[str]) -> None:
    tensors: Any = [SimpleNamespace(is_cuda=name != "cpu", device=name) for name in ("cpu", "0", "1", "0")]
    begin = note_streams(tensors)
    with begin():
        pass
    recorded = [each.removeprefix("record present ") for each in said[:2]]
    assert sorted(each.partition(".")[0] for each in recorded) == ["0", "1"]
    assert said[2:] == [
        line for each in recorded for line in (f"new {each[0]} waits for present {each}", f"enter new {each[0]}")
    ]


def test_a_host_is_at_most_one_save_before_its_gpu(said: list[str]) -> None:
    pace = Pace()
    for _ in range(3):
        pace.keep()
    assert said == [
        "record present 0.0",
        *("await present 0.0", "record present 0.2"),
        *("await present 0.2", "record present 0.4"),
    ]
