"""What still needs the folder of a lost job: workers on other hosts, which wait for the job's next server."""

from hvdrun.hosts.preparation import find_remote
from hvdrun.jobs.continuation import read_journal
from hvdrun.jobs.errors import JobNeededError, JobRunningError
from hvdrun.jobs.folder import JobFolder
from rendezvous.core.lifecycle import WorkerState
from rendezvous.journal.errors import JournalError


def refuse_needed(folder: JobFolder) -> None:
    """Refuse to remove the folder of a lost job that workers on other hosts may need.

    Raises:
        JobNeededError: there are such workers, as far as the journal tells.
        JobRunningError: a server has just begun.
    """
    if not folder.has_journal:
        return
    try:
        state = read_journal(folder)
    except BlockingIOError as error:
        raise JobRunningError(folder.job) from error
    except (JournalError, OSError):  # no other server can continue the job
        return
    if state is None:
        return
    hosts = {each.worker.slot.host for each in state.workers.values() if each.state is not WorkerState.ENDED}
    if remote := find_remote(sorted(hosts)):
        raise JobNeededError(folder.job, sorted(remote))
