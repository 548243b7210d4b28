"""The configuration of the agents of a job."""

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hvdrun.hosts.network_plan import Route
from hvdrun.spec.environment import THREADS, choose_environment
from hvdrun.spec.jobspec import JobSpec
from rendezvous.wire.orders import Begin

if TYPE_CHECKING:
    from rendezvous.server.authority import Authority


class AgentConfig:
    """Writes the Begin of each host of a job.

    Args:
        spec: the job as a value.
        job: its name.
        authority: issues each agent's credential.
        verbose: prints a sentence with -v.
        own: the environment of hvdrun.
    """

    def __init__(
        self,
        spec: JobSpec,
        job: str,
        authority: "Authority",
        verbose: Callable[[str], None],
        own: Mapping[bytes, bytes] = os.environb,
    ) -> None:
        self._spec = spec
        self._job = job
        self._authority = authority
        self._verbose = verbose
        self._own = own

    def update(self, spec: JobSpec) -> None:
        """The hosts of the job have changed."""
        self._spec = spec

    def write(self, host: str, route: Route, number: int = 1) -> Begin:
        """The configuration of the agent of this host.

        Args:
            host: its name in the job.
            route: its addresses.
            number: which agent of this host it is, from 1. Each has its own identity, so that an agent that was cut off
                and comes back is not taken for its successor.
        """
        spec = self._spec
        job = self._job
        if number > 1:
            job = f"{self._job}~{number}"
        # Nothing cuts the launcher's own machine off.
        launcher_timeout_seconds = math.inf
        if spec.is_remote(host):
            launcher_timeout_seconds = spec.limits.effective_launcher_timeout_seconds

        server_timeout_seconds = None
        if spec.display.detach:
            server_timeout_seconds = spec.limits.effective_server_timeout_seconds

        return Begin(
            job=job,
            host=host,
            server=str(route.server),
            credential=self._authority.issue_agent(host, number),
            command=spec.command_on(host),
            directory=str(spec.workers.directory),
            environment=self._choose_environment(host),
            lease_seconds=spec.limits.lease_seconds,
            launcher_timeout_seconds=launcher_timeout_seconds,
            start_timeout_seconds=spec.limits.start_timeout_seconds,
            address=route.address,
            interface=route.interface,
            workers=spec.workers.options,
            inherits=spec.is_remote(host),
            grace_seconds=spec.limits.grace_seconds,
            outlives_losses=spec.is_elastic,
            server_timeout_seconds=server_timeout_seconds,
            looks_for_world=spec.limits.elasticity is not None and spec.limits.elasticity.restarts.needs_world,
        )

    def _choose_environment(self, host: str) -> dict[bytes, bytes]:
        spec = self._spec
        workers = next((each.slots for each in spec.workers.hosts if each.name == host), 1)
        if workers > 1 and THREADS not in self._own and THREADS not in spec.workers.forwarded:
            self._verbose(f"{workers} workers share {host}: OMP_NUM_THREADS=1, unless you set it")
        return choose_environment(
            self._own,
            workers,
            remote=spec.is_remote(host),
            prefixed=spec.remote.leaves_paths,
            forwarded=spec.variables,
        )
