"""Which of a host's devices a worker trains on."""


class NoDeviceError(ValueError):
    """There are more workers on this host than devices."""

    def __init__(self, local_rank: int, count: int) -> None:
        super().__init__(
            f"there is no GPU for the worker of local rank {local_rank}, since it sees {count}; start at most {count} "
            "workers on each host, or choose the device in the script and pass pin_device=False to hvd.prepare()"
        )


def choose_device(count: int, local_rank: int) -> int:
    """The number of a worker's device; a device that is the only one to be seen is the worker's, as batch systems do.

    Args:
        count: how many devices this worker sees.
        local_rank: this worker's number on its host.

    Raises:
        NoDeviceError: there is none for this worker.
    """
    if count == 1:
        return 0
    if local_rank >= count:
        raise NoDeviceError(local_rank, count)
    return local_rank
