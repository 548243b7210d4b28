"""How the hosts of an elastic job reach each other, and the rendezvous, whenever they come.

The first hosts are surveyed as those of a static job are. A host that comes later must reach, and be reached by, those
that are in use, at the addresses that these have already; it is left out if it does not. A job whose hosts are all this
machine, by names that mean nothing elsewhere, stays on the loopback interface, and needs no survey.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from hvdrun.errors import HostLostError, LaunchError
from hvdrun.hosts.fleet import Fleet
from hvdrun.hosts.routes import Doors, Route
from hvdrun.network.alone import choose_alone
from hvdrun.network.choice import Choice, check_machines, choose
from hvdrun.network.errors import NoAllowedAddressError, NoCommonAddressError, SameMachineError, SurveyTimeoutError
from hvdrun.network.findings import Findings
from hvdrun.network.restriction import Restriction
from hvdrun.network.survey import survey
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.model import LOOPBACK, Endpoint

Answer = Route | LaunchError


class InsideOnlyError(LaunchError):
    """A host would have to reach workers that only this machine reaches."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the host {host!r} cannot join a job that began on this machine alone, at {LOOPBACK}: name this machine "
            "as other hosts know it, and not localhost, or give --network-interfaces."
        )
        self.host = host


class RouteMap:
    """The ways of the hosts that are in use; belongs to one event loop, and is extended by one caller at a time.

    server: the rendezvous.
    tell: takes sentences for whoever asked hvdrun to be verbose.
    coming: the hosts that are named, and of which the job does not know yet whether they are this machine.
    """

    def __init__(
        self,
        fleet: Fleet,
        server: Doors,
        tell: Callable[[str], None],
        *,
        coming: Callable[[], Collection[str]] = tuple,
        loopback: bool = False,
    ) -> None:
        self._fleet = fleet
        self._server = server
        self._tell = tell
        self._coming = coming
        self._loopback = loopback  # its addresses take part in surveys: for tests
        self._doors: dict[str, Endpoint] = {}  # by the launcher's address
        self._settled: dict[str, str] = {}  # the hosts in use, and where the others reach them
        self._is_inside = False  # they are all this machine, on the loopback interface

    async def open(self) -> Endpoint:
        """Open the rendezvous on this machine itself; where."""
        return await self._open_door(LOOPBACK)

    def forget(self, host: str) -> None:
        """The host is not in use any more."""
        self._settled.pop(host, None)

    async def extend(self, spec: JobSpec, newcomers: Sequence[str]) -> dict[str, Answer]:
        """The ways of hosts that are to be used from now on, or why one cannot be, by host.

        Args:
            spec: the job, with all hosts that are known.
            newcomers: hosts with an agent that has not been told of the job.
        """
        if not self._settled:
            self._is_inside = _can_stay_inside(spec) and all(map(_means_itself, self._coming()))
        if self._is_inside:
            return {host: await self._admit_inside(spec, host) for host in newcomers}
        restriction = Restriction(spec.remote.interfaces) if spec.remote.interfaces else None
        answers: dict[str, Answer] = {}
        findings = await self._survey(list(newcomers), answers)
        while findings is not None and (left := [host for host in findings.hosts if host in newcomers]):
            try:
                choice = _choose(findings, restriction)
            except (NoCommonAddressError, NoAllowedAddressError, SameMachineError) as error:
                for host in _find_hindrances(error, left):
                    answers[host] = error
                    findings = findings.without(host)
            else:
                for host in left:
                    answers[host] = await self._admit(spec, host, choice)
                break
        return answers

    async def _survey(self, waiting: list[str], answers: dict[str, Answer]) -> Findings | None:
        """What a survey of the hosts in use and of these finds; who fails meanwhile gets an answer and is left out."""
        while waiting:
            settled = dict(self._settled)
            try:
                return await survey(
                    [*settled, *waiting], self._fleet.send, self._fleet.hear, settled=settled, loopback=self._loopback
                )
            except (SurveyTimeoutError, HostLostError) as error:
                missing = error.hosts if isinstance(error, SurveyTimeoutError) else (error.host,)
                have_left = any(host in settled and host not in self._settled for host in missing)
                failed = [host for host in waiting if host in missing] or ([] if have_left else waiting)
                answers.update(dict.fromkeys(failed, error))
                waiting = [host for host in waiting if host not in failed]
        return None

    async def _admit(self, spec: JobSpec, host: str, choice: Choice) -> Answer:
        chosen = choice.hosts[host]
        reached = choice.launcher[host] if spec.is_remote(host) else LOOPBACK
        try:
            inside = await self.open()
            end = (
                Endpoint(LOOPBACK, await self._fleet.tunnel(host, inside.port))
                if reached is None
                else await self._open_door(reached)
            )
        except LaunchError as error:
            return error
        way = f"at {end}" if reached is not None else spec.remote.inner_way
        self._tell(f"{host}: {chosen.reason}; it reaches the rendezvous {way}")
        self._settled[host] = chosen.address
        return Route(chosen.address, chosen.interface, end)

    async def _admit_inside(self, spec: JobSpec, host: str) -> Answer:
        if not spec.remote.is_inside:
            return InsideOnlyError(host)
        self._settled[host] = LOOPBACK
        return Route(LOOPBACK, "", await self.open())

    async def _open_door(self, address: str) -> Endpoint:
        if address not in self._doors:
            self._doors[address] = Endpoint(address, await self._server.open(address))
        return self._doors[address]


def _can_stay_inside(spec: JobSpec) -> bool:
    """No host of this job is, or is likely to be, another machine."""
    if spec.remote.joining is not None:
        return spec.remote.joining.is_inside
    if spec.remote.hosts:
        return False
    return not spec.discovers or (
        not spec.remote.interfaces and all(_means_itself(host.name) for host in spec.workers.hosts)
    )


def _means_itself(host: str) -> bool:
    """The name leads each machine to itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _choose(findings: Findings, restriction: Restriction | None) -> Choice:
    choice = choose(findings, restriction)
    if len(findings.hosts) == 1:
        choice = replace(choice, hosts={findings.hosts[0]: choose_alone(findings, restriction)})
    check_machines(choice)
    return choice


def _find_hindrances(
    error: NoCommonAddressError | NoAllowedAddressError | SameMachineError, newcomers: Sequence[str]
) -> Sequence[str]:
    """Without which of the newcomers the others may have a network: few of them, all where nobody is to blame."""
    match error:
        case NoCommonAddressError():
            named = Counter(host for pair in error.unreached for host in pair if host in newcomers)
            named.update(host for host in error.divided if host in newcomers)
            found = [max(reversed(newcomers), key=lambda host: named[host])] if named else []
        case NoAllowedAddressError():
            found = [host for host in newcomers if host in error.hosts]
        case SameMachineError():
            found = [host for host in newcomers if host in error.names[1:]]
    return found or newcomers
