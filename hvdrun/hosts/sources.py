"""Where the hosts of a job come from: a fixed list, the discovery script, or the agents that join by themselves."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.model import Host

if TYPE_CHECKING:
    from hvdrun.joining.roster import Roster


class Source(Protocol):
    """The hosts of one job, for one event loop."""

    @property
    def coming(self) -> tuple[str, ...]:
        """The hosts for which the lookup, whether they are this machine, is not finished."""

    async def run(self, use: Callable[[JobSpec], None]) -> None:
        """Pass on the job with the hosts that it has, and again when they change; return when they stay the same.

        Raises:
            HvdrunError: the job cannot have hosts.
        """


class FixedHosts:
    """The hosts of the command line, of a hostfile or of a scheduler; see `Source`.

    Args:
        spec: the job, with its hosts.
    """

    coming = ()

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    async def run(self, use: Callable[[JobSpec], None]) -> None:
        """See `Source`."""
        use(self._spec)


def choose_source(
    spec: JobSpec, notice: Callable[[str], None], roster: "Roster | None", former: tuple[Host, ...] = ()
) -> Source:
    """Where the hosts of this job come from.

    notice: prints a sentence.
    roster: the agents that join by themselves, if this job has such.
    former: the hosts that a former server of the job had.
    """
    if roster is not None:
        from hvdrun.joining.launcher import JoinedHosts  # noqa: PLC0415 - other jobs have no such agents

        return JoinedHosts(spec, roster, notice)
    if spec.discovers:
        from hvdrun.hosts.discovery import Discovery  # noqa: PLC0415 - few jobs have a script

        return Discovery(spec, notice, former)
    return FixedHosts(spec)
