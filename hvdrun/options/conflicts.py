"""Options that a job takes only together, or not together; and whether it is elastic, and how its hosts come."""

import os
from collections.abc import Container, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.options.kinds import LogLevel
from hvdrun.options.table import BY_DEST
from hvdrun.options.values import fill
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.mapping import MapBy
from hvdrun.spec.remote import Joining
from rendezvous.bootstrap import TIMELINE
from rendezvous.core.model import Recovery, Restarts

# By dest, in the order in which they are refused.
_SSH = ("ssh_port", "ssh_identity_file", "ssh_accept_new")
_NAMED_HOSTS = ("hosts", "hostfile", "script", *_SSH, "prefix", "rsh", "agent_prefix")
_JOINING = ("bind", "token_file")
_WRITTEN, _READ = ("outcome_file", "log_file", "timeline", "write_config"), ("config_file", "hostfile", "token_file")
ELASTIC = ("max_size", "slots_per_host", *(each.name for each in fields(Recovery)))
_WAITING = frozenset({"elastic_timeout_seconds", "cooldown_seconds"})  # the only ones for a job that only restarts


def choose_elasticity(values: Mapping[str, Any]) -> Elasticity | None:
    """The bounds of an elastic job, from all options' values by dest; None for a static job.

    Raises:
        UsageError: the options contradict each other.
    """
    _check_level(values)
    _check_files(values)
    _check_detachment(values)
    _check_restarts(values)

    has_fixed_size = values["min_size"] is None and values["script"] is None
    if has_fixed_size and values["max_restarts"]:
        _refuse(
            values,
            tuple(dest for dest in ELASTIC if dest not in _WAITING),
            "{} means nothing to a job whose workers are always started together, as many as -np: leave it out, or let "
            "the job continue with fewer with --min-np.",
        )
        return _fill(values, min_size=values["size"], max_size=values["size"], continues_in_place=False)
    if has_fixed_size:
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

    return _fill(values, min_size=values["min_size"] or values["size"])


def _check_level(values: Mapping[str, Any]) -> None:
    """Refuse two different levels.

    Raises:
        UsageError: there are two.
    """
    if values["verbose"] and values["log_level"] is not LogLevel.DEBUG:
        _refuse(values, ("log_level",), "{} contradicts -v, which is --log-level debug: give only one of them.")


def _check_files(values: Mapping[str, Any]) -> None:
    """Refuse one file for two options, of which one writes it; a configuration may be written where it was read.

    Raises:
        UsageError: there is such a file.
    """
    named: dict[str, str] = {}
    for dest in (*_WRITTEN, *_READ):
        if values[dest] is None:
            continue
        try:
            path = str(Path(values[dest]).absolute())
        except FileNotFoundError:  # hvdrun's own folder was removed
            return
        former = named.setdefault(path, dest)
        if former in _WRITTEN and former != dest and {former, dest} != {"write_config", "config_file"}:
            raise UsageError(f"{_flag(former)} and {_flag(dest)} name the same file, {path!r}: name another one.")


def _check_detachment(values: Mapping[str, Any]) -> None:
    """Refuse a detached job with a standard input, and any other job with a limit that only a detached one has.

    Raises:
        UsageError: it has one.
    """
    if values["detach"]:
        _refuse(
            values,
            ("stdin_rank",),
            "{} reads the standard input of hvdrun, which ends with the terminal that --detach leaves: let the program "
            "read a file.",
        )
    else:
        _refuse(
            values,
            ("server_timeout_seconds",),
            "{} is for a job that outlives its terminal: give --detach as well, or --launcher-timeout instead.",
        )


def explain_detachment(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A remark on the limit that a detached job replaces; none without it."""
    if not (values["detach"] and "launcher_timeout_seconds" in values["typed"]):
        return ()
    remark = "--launcher-timeout counts only until the workers start: with --detach --server-timeout is the limit then"
    return (f"{remark}.",)


def check_timeline(values: Mapping[str, Any], variables: Container[bytes]) -> None:
    """Refuse marks in a timeline that nothing asks for, by the names of the variables that the workers get.

    Raises:
        UsageError: there is no timeline.
    """
    if values["timeline"] is None and os.fsencode(TIMELINE) not in variables:
        _refuse(
            values,
            ("timeline_mark_cycles",),
            "{} marks a timeline, and this job records none: give --timeline as well.",
        )


def _check_restarts(values: Mapping[str, Any]) -> None:
    """Refuse options that contradict restarts, or need them.

    Raises:
        UsageError: there are such.
    """
    if not (values["min_size"] is None and values["script"] is None) or values["max_restarts"]:
        _refuse(
            values,
            ("stdin_rank",),
            "{} needs a worker that lasts as long as the job, and this job may replace its workers: let the program "
            "read a file.",
        )

    if not values["max_restarts"]:
        _refuse(
            values,
            ("grow_after_seconds",),
            "{} plans a restart with more workers, and this job has no restarts: give --max-restarts as well.",
        )
    elif values["min_size"] is None and values["script"] is None:
        _refuse(
            values,
            ("grow_after_seconds",),
            "{} is for a job whose size may change: give --min-np as well.",
        )


def _fill(values: Mapping[str, Any], **bounds: object) -> Elasticity:
    """The bounds, with the times and restarts of the options.

    Raises:
        UsageError: the times contradict each other.
    """
    least, most = values["cooldown_seconds"]
    if least > most:
        raise UsageError(f"--blacklist-cooldown-range {least:g} {most:g} is impossible: the shorter time comes first.")
    # Without --max-restarts, all workers start again only if they are a world of torch.distributed, which needs that.
    limit = values["max_restarts"]
    restarts = Restarts(limit=limit, needs_world=not limit, grow_after_seconds=values["grow_after_seconds"])
    if "grace_seconds" in values["typed"]:
        grace_seconds = values["grace_seconds"]
        restarts = replace(restarts, grace_seconds=grace_seconds, planned_grace_seconds=grace_seconds)
    return fill(Elasticity, values, recovery=fill(Recovery, values), restarts=restarts, **bounds)


def find_idle(values: Mapping[str, Any]) -> Mapping[str, str]:
    """The options of an elastic job that are given and have no effect in this job, by dest, each with its flag."""
    if values["script"] is not None:
        return {}
    idle = ELASTIC
    if values["min_size"] is not None:
        idle = ("slots_per_host",)
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
