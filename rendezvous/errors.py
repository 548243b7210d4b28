"""What can go wrong between a worker, its agent and the rendezvous server; each error builds its own sentence."""

from collections.abc import Sequence


class RendezvousError(Exception):
    """Base of all errors of this package."""


class BootstrapError(RendezvousError):
    """The variables that hvdrun gives to a worker were changed on their way.

    Cause: The script, or a wrapper around it, changes or removes variables `HVD_*`.
    Remedy: Pass them on unchanged.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(
            f"the HVD_* variables that hvdrun gave to this worker are incomplete or malformed ({cause!r}); "
            "start the script through hvdrun without changing them"
        )


class UnknownBackendError(RendezvousError):
    """A variable names an unknown backend.

    Cause: The variable names no backend.
    Remedy: Use one that the sentence lists.
    """

    def __init__(self, variable: str, name: str, known: Sequence[str]) -> None:
        super().__init__(f"{variable} is {name!r}; it takes {', '.join(known[:-1])} or {known[-1]}")
        self.name = name


class JoinRefusedError(RendezvousError):
    """The rendezvous will never form a generation with this worker.

    Message: the job is ending: REASON
    Cause: The job ends while the worker joins it.
    Remedy: See the reason in the sentence.
    """

    def __init__(self, reason: str, *, leaves: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.leaves = leaves  # the worker is no longer wanted, and is being stopped


class GenerationInterruptedError(RendezvousError):
    """The generation cannot continue, or start: its members join again with a report.

    Cause: A worker of the generation was lost.
    Remedy: None: its members join the next generation.
    """

    def __init__(self, generation: int, reason: str) -> None:
        super().__init__(f"generation {generation} was interrupted: {reason}")
        self.generation = generation
        self.reason = reason


class UnreachableError(RendezvousError):
    """The agent or the server did not answer in time.

    Cause: The agent or hvdrun has ended, or the network was cut.
    Remedy: See the first error in the output.
    """

    def __init__(self, what: str, where: str, detail: str) -> None:
        super().__init__(f"{what} at {where} did not answer: {detail}")
        self.where = where


class ListenError(RendezvousError):
    """The server, or an agent, cannot listen at its address or socket.

    Cause: The address has gone, or the temporary folder cannot hold a socket.
    Remedy: Check the network interface, and `TMPDIR`.
    """

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"the rendezvous cannot listen at {where}: {detail}")
        self.where = where


class SequencerStartError(RendezvousError):
    """The sequencer, which orders the workers' collectives, could not be started.

    Cause: The Python of the workers has no NumPy, or ran out of processes.
    Remedy: Install NumPy there.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"there is no sequencer, which orders the workers' collectives: {reason}")
        self.reason = reason


class WireError(RendezvousError):
    """A message is malformed, or comes from another program.

    Cause: Another program, or another version of hvdrun, writes to a connection of the job.
    Remedy: Install one version on all hosts.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"the peer does not speak hvdrun's protocol: {what}")


class CallRefusedError(RendezvousError):
    """The peer understood a call and refused it.

    Cause: The server no longer knows this worker or agent.
    Remedy: See the reason in the sentence.
    """

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where} refused a call: {detail}")
