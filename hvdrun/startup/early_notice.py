"""A stop notice that comes while one of hvdrun's programs still starts: by default it would kill that program."""

import signal


class EarlyNotice:
    """Stands as the handler of SIGUSR2 until the program answers it; the processes that it starts do not inherit it."""

    def __init__(self) -> None:
        self._has_come = False

    def __call__(self, *_: object) -> None:
        """It has come."""
        self._has_come = True

    def take(self) -> bool:
        """Whether it has come since the last time that this was asked."""
        has_come, self._has_come = self._has_come, False
        return has_come


def keep_notice() -> None:
    """From now on a notice is kept until it is answered, unless it is ignored."""
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, EarlyNotice())
