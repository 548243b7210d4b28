"""Errors that programs written for Horovod recognise."""

from datetime import timedelta

import pytest

from rendezvous.core.model import Assignment, Membership
from worker_runtime import errors

EVERY_ERROR = [
    errors.NotInitializedError(),
    errors.InitializationError("the agent is gone"),
    errors.ForeignWorldError("torchrun", 4),
    errors.ForeignRankError("torchrun", 5, 2),
    errors.MeetingError("torchrun", "10.0.0.1:29500", "timed out"),
    errors.GroupFormationError(
        Membership(2, Assignment(1, 4, 1, 4, 0, 1), bytes(32)), "10.0.0.1", timedelta(seconds=30), "refused"
    ),
    errors.OperationFailedError("allreduce 'loss'", 1, "Connection closed by peer"),
    errors.ShutDownError("allreduce 'loss'", 1),
    errors.ExcessBackwardError("fc.weight", 1),
    errors.LocalStepError("first_step", "call optimizer.synchronize() before it"),
    errors.GradientShapeError("fc.weight", (3,), (4,)),
]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_an_error_is_one_line(error: Exception) -> None:
    assert str(error)
    assert "\n" not in str(error)


def test_a_foreign_world_names_its_size_and_the_way_out() -> None:
    assert "'hvdrun -np 4'" in str(errors.ForeignWorldError("mpirun", 4))


def test_the_interrupt_says_whether_the_state_need_not_be_synchronised() -> None:
    assert errors.HostsUpdatedInterrupt().skip_sync is False
    assert errors.HostsUpdatedInterrupt(skip_sync=True).skip_sync is True
    assert isinstance(errors.HostsUpdatedInterrupt(), RuntimeError)


def test_another_version_than_the_one_built_for_is_named() -> None:
    error = errors.HorovodVersionMismatchError("torch", "2.0", "2.1")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "2.1")
    assert str(error) == errors.get_version_mismatch_message("torch", "2.0", "2.1")
    assert str(error).startswith("Horovod was built with torch 2.0, but 2.1 is installed")
