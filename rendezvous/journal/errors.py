"""Why a journal cannot be used; each error builds its own sentence."""

from pathlib import Path

from rendezvous.errors import RendezvousError


class JournalError(RendezvousError):
    """Base of the errors of a journal."""


class JournalInUseError(JournalError):
    """Another server has the journal.

    Cause: A server of this job runs already.
    Remedy: None, if the job continues. To start a server by hand, end the other one first.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"the journal {path} is in use: another server of this job runs; end that one first")


class JournalTooNewError(JournalError):
    """A later version of hvdrun has written the journal, which stays as it is.

    Cause: The job was started with a later version of hvdrun than the one that is to continue it.
    Remedy: Continue it with that version.
    """

    def __init__(self, path: Path, written: int, known: int) -> None:
        super().__init__(
            f"the journal {path} has format {written}, and this hvdrun reads formats up to {known}: continue the job "
            "with the version of hvdrun that has started it"
        )


class JournalDamagedError(JournalError):
    """A part of the journal is missing, or has other bytes than were written.

    Cause: The disk has a fault, or another program has written to the files.
    Remedy: Check the disk. Start the job again, from its checkpoint if it has one.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the journal {path} is damaged, and the job cannot continue from it: {reason}; check the disk, and start "
            "the job again"
        )


class JournalPlaceError(JournalError):
    """The journal would lie on a file server, where neither its locks nor its order of writes are sure.

    Cause: The folder of the job is on NFS or another shared file system.
    Remedy: Set `XDG_STATE_HOME` to a folder on a local disk.
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(
            f"the journal {path} would lie on {kind}, where its locks are not sure: name a folder on a local disk with "
            "XDG_STATE_HOME"
        )


class JournalUnwritableError(JournalError):
    """The journal cannot be opened or written.

    Cause: The disk is full or has a fault, or the folder belongs to another user.
    Remedy: Free space on the disk, or correct the permissions of the folder.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the journal {path} cannot be written: {reason}; see whether its disk is full")
