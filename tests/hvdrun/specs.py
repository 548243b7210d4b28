"""Jobs for tests, made and changed by the fields of their parts."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hvdrun.spec.jobspec import Display, JobSpec, Workers
from hvdrun.spec.limits import Elasticity, Limits
from hvdrun.spec.remote import Remote
from rendezvous.core.model import Host

PARTS = {"display": Display, "limits": Limits, "remote": Remote, "workers": Workers}
# What is in two parts belongs to the last: the command and the hosts of the workers.
PART_OF = {each.name: part for part, kind in PARTS.items() for each in fields(kind)}


def build_spec(
    command: tuple[str, ...],
    size: int,
    hosts: tuple[Host, ...],
    directory: Path,
    elasticity: Elasticity | None = None,
    **given: Any,
) -> JobSpec:
    """A job; given: fields of any part, or whole parts."""
    spec = JobSpec(
        Workers(command, size, hosts, directory),
        limits=Limits(elasticity=elasticity),
        remote=given.pop("remote", Remote()),
    )
    return with_fields(spec, **given)


def with_fields(spec: JobSpec, **given: Any) -> JobSpec:
    """The job with other fields, of whichever part, or other parts."""
    parts = {part: given.get(part, getattr(spec, part)) for part in PARTS}
    for part, whole in parts.items():
        parts[part] = replace(whole, **{name: value for name, value in given.items() if PART_OF.get(name) == part})
    return replace(spec, **parts)


def read_field(spec: JobSpec, name: str) -> object:
    """The field of whichever part."""
    return getattr(getattr(spec, PART_OF[name]), name)
