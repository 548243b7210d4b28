"""Options that a job takes only together, or not together; and whether it is elastic, and how its hosts come."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.options.table import BY_DEST
from hvdrun.options.values import fill
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.mapping import MapBy
from hvdrun.spec.remote import Joining
from rendezvous.core.model import Recovery

# By dest, in the order in which they are refused.
_SSH = ("ssh_port", "ssh_identity_file", "ssh_accept_new")
_NAMED_HOSTS = ("hosts", "hostfile", "script", *_SSH, "prefix", "rsh", "agent_prefix")
_JOINING = ("bind", "token_file")
ELASTIC = ("max_size", "slots_per_host", *(each.name for each in fields(Recovery)))


def choose_elasticity(values: Mapping[str, Any]) -> Elasticity | None:
    """The bounds of an elastic job, from all options' values by dest; None for a static job.

    Raises:
        UsageError: the options contradict each other.
    """
    if values["min_size"] is None and values["script"] is None:
        _refuse(
            values,
            ELASTIC,
            "{} means nothing to a job whose workers stay the same: let it continue with fewer with --min-np, or name "
            "its hosts with --host-discovery-script.",
        )
        return None
    if values["map_by"] is MapBy.NODE:
        raise UsageError(
            "-map-by node divides a fixed number of workers among the hosts, and an elastic job has no fixed number: "
            "leave it out."
        )
    _refuse(
        values,
        ("stdin_rank",),
        "{} needs a worker that lasts as long as the job, and an elastic job may replace its workers: let the program "
        "read a file.",
    )
    if values["script"] is None:
        _refuse(values, ("slots_per_host",), "{} is for hosts that --host-discovery-script names, which is not given.")
    else:
        _refuse(
            values,
            ("hosts", "hostfile"),
            "{} and --host-discovery-script both say which hosts to use: give only one of them.",
        )
        _refuse(
            values,
            ("oversubscribe",),
            "{} adds slots to hosts that stay the same; with --host-discovery-script let the script name more slots, "
            "or give --slots-per-host.",
        )
    least, most = values["cooldown_seconds"]
    if least > most:
        raise UsageError(f"--blacklist-cooldown-range {least:g} {most:g} is impossible: the shorter time comes first.")
    return fill(Elasticity, values, min_size=values["min_size"] or values["size"], recovery=fill(Recovery, values))


def find_idle(values: Mapping[str, Any]) -> Mapping[str, str]:
    """The given options that have no effect in such a job, by dest, each with its flag."""
    if values["script"] is not None:
        return {}
    idle = ELASTIC if values["min_size"] is None else ("slots_per_host",)
    return {dest: _flag(dest) for dest in idle if dest in values["typed"]}


def choose_joining(values: Mapping[str, Any]) -> Joining | None:
    """How the job's hosts join it by themselves, from all options' values by dest; None where hvdrun goes to them.

    Raises:
        UsageError: the options contradict each other.
    """
    if not values["wait_for_agents"]:
        _refuse(values, _JOINING, "{} is for a job that waits for its agents: give --wait-for-agents as well.")
        if values["rsh"]:
            _refuse(values, _SSH, "{} is for hvdrun's own SSH, and --rsh replaces that: write it into --rsh's command.")
        return None
    _refuse(
        values,
        _NAMED_HOSTS,
        "{} is for hosts that hvdrun goes to, and with --wait-for-agents they come: give only one of them.",
    )
    _refuse(
        values,
        ("oversubscribe",),
        "{} is for named hosts; with --wait-for-agents give the agents more --slots.",
    )
    return fill(Joining, values)


def _refuse(values: Mapping[str, Any], dests: tuple[str, ...], sentence: str) -> None:
    """Refuse the first of these options that is given; the sentence has `{}` for its flag."""
    for dest in dests:
        if dest in values["typed"] and values[dest] is not False:
            raise UsageError(sentence.format(_flag(dest)))


def _flag(dest: str) -> str:
    return BY_DEST[dest].flags[0]
