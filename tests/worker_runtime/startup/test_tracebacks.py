"""Which frames a user sees of an error of ours."""

import sys
import traceback
from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from worker_runtime.startup.program_end import shorten_tracebacks


class State:
    """The state of a training function, with the methods that it must have."""

    def sync(self) -> None:
        """Nothing to send: all ranks have the same state."""


@hvd.elastic.run
def divide(_: State) -> None:
    raise ZeroDivisionError


def raise_from(cause: Exception | None) -> None:
    raise hvd.HorovodInternalError("lost") from cause


@pytest.mark.parametrize(
    ("call", "others", "has_ours"),
    [
        (lambda: hvd.allreduce(torch.ones(1)), ["<lambda>"], False),  # before init(): one error leads to another
        (lambda: divide(State()), ["<lambda>", "divide"], True),
        (lambda: raise_from(KeyError("cause")), ["<lambda>", "raise_from"], False),
    ],
)
def test_an_error_of_ours_shows_the_program_s_frames_alone(
    call: Callable[[], object], others: list[str], *, has_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[traceback.TracebackException] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(traceback.TracebackException(*error)))
    shorten_tracebacks()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        call()
    sys.excepthook(caught.type, caught.value, caught.tb)
    frames = [frame for frame in shown[0].stack if frame.filename == __file__]
    assert [frame.name for frame in frames][1:] == others
    assert (len(frames) < len(shown[0].stack)) is has_ours
    assert ("During handling" in "".join(shown[0].format())) is False
