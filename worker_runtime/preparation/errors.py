"""What `hvd.prepare` refuses; each sentence says what to write by hand."""

from worker_runtime.errors import WrongArgumentError


class DataNotSplitError(WrongArgumentError):
    """Nobody but the program can tell which part of this data is a rank's."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"the data cannot be split among the ranks: {reason}; {remedy}")


class SchedulerExistsError(WrongArgumentError):
    """A learning rate is to be scaled that a scheduler has noted already, and will set again."""

    def __init__(self, remedy: str) -> None:
        super().__init__(f"the learning rate cannot be scaled any more, since a scheduler has noted it; {remedy}")
