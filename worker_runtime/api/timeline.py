"""Horovod's recording of what its operations do when; this version does not make one."""

from typing import NoReturn

from worker_runtime.membership.runtime import RUNTIME


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:  # noqa: FBT001, FBT002 - Horovod's signature
    """Refuse: a timeline is not served yet.

    Args:
        file_path: where Horovod writes it.
        mark_cycles: whether Horovod marks the cycles of its background thread, of which there are none here.

    Raises:
        ValueError: Horovod has not been initialized.
        NotImplementedError: always otherwise.
    """
    del mark_cycles
    RUNTIME.assignment  # noqa: B018 - raises unless initialised
    raise NotImplementedError(
        f"start_timeline({file_path!r}): timelines are not served yet; leave the call out, and use torch.profiler to "
        "see what takes time"
    )


def stop_timeline() -> None:
    """Do nothing, as Horovod does when no timeline is being written.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    RUNTIME.assignment  # noqa: B018 - raises unless initialised
