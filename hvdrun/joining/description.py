"""What a job would wait for, for --dry-run."""

import shlex

from hvdrun.joining.reception import choose_place, find_reachable, write_line
from hvdrun.spec.hosts import count_slots
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.redaction import redact_command
from hvdrun.spec.remote import Joining
from rendezvous.core.model import Endpoint


def describe_joining(spec: JobSpec, joining: Joining) -> str:
    """Where it would listen, and what the agents would be given; ends without a newline."""
    place = choose_place(joining)
    address = find_reachable(place.address)
    at = str(Endpoint(address, place.port)) if place.port else f"{address}:PORT"
    token = str(joining.token_file or "FILE")
    return "\n".join(
        [
            f"--dry-run: nothing is started. hvdrun would wait for agents with {count_slots(spec.workers.size)}:",
            f"  listens    {at if place.port else f'{address}, on a free port'}",
            f"  token      {joining.token_file or f'made for this job, in {spec.workers.directory}'}",
            f"  each host  {write_line(at, token)}",
            f"  command    {shlex.join(redact_command(spec.workers.command))}",
            f"  directory  {spec.workers.directory}",
        ]
    )
