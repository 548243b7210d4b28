"""Who is called when a descriptor is ready."""

import os
from collections.abc import Iterator

import pytest

from worker_runtime.coordination.sequencer.connection import READ, WRITE, Poller


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(2)]
    yield made
    for descriptor in (end for pipe in made for end in pipe):
        os.close(descriptor)


def test_the_latest_callback_and_events_count(poller: Poller, pipes: list[tuple[int, int]]) -> None:
    called: list[str] = []
    _, write = pipes[0]
    poller.watch(write, WRITE, lambda _: called.append("first"))
    poller.watch(write, WRITE, lambda _: called.append("second"))
    poller.wait(60)
    poller.change(write, 0)
    poller.wait(0)
    assert called == ["second"]


def test_a_removed_listener_is_not_called_in_the_same_round(poller: Poller, pipes: list[tuple[int, int]]) -> None:
    called: list[int] = []

    def forget_all(number: int) -> None:
        called.append(number)
        for read, _ in pipes:
            poller.forget(read)

    for number, (read, write) in enumerate(pipes):
        poller.watch(read, READ, lambda _, number=number: forget_all(number))
        os.write(write, b"x")
    poller.wait(60)
    assert len(called) == 1


def test_forgetting_twice_does_nothing(poller: Poller, pipes: list[tuple[int, int]]) -> None:
    poller.watch(pipes[0][0], READ, lambda _: None)
    poller.forget(pipes[0][0])
    poller.forget(pipes[0][0])
