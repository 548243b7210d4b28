"""Tells from the options whether a job is elastic, and how its hosts come; refuses what contradicts that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.options.settling import choose
from hvdrun.options.table import BY_DEST
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.mapping import MapBy
from hvdrun.spec.remote import Joining

# By dest, in the order in which they are refused.
_OF_OWN_SSH = ("ssh_port", "ssh_identity_file", "ssh_accept_new")
_OF_NAMED_HOSTS = ("hosts", "hostfile", "script", *_OF_OWN_SSH, "prefix", "rsh", "agent_prefix")
_OF_AGENTS = ("bind", "token_file")
ELASTIC = (
    "max_size",
    "slots_per_host",
    "timeout_seconds",
    "reset_limit",
    "cooldown_seconds",
    "slot_failures",
    "slot_cooldown_seconds",
)


def choose_elasticity(values: Mapping[str, Any]) -> Elasticity | None:
    """What the options' values, by dest, say of it; None for a static job.

    Raises:
        UsageError: they contradict each other.
    """
    if values["min_size"] is None and values["script"] is None:
        _refuse_alone(values)
        return None
    _refuse_what_stays(values)
    _refuse_two_sources(values)
    return choose(Elasticity, values, min_size=values["min_size"] or values["size"])


def _refuse_alone(values: Mapping[str, Any]) -> None:
    """A job that is not elastic has none of its limits."""
    for dest in ELASTIC:
        if dest in values["typed"]:
            raise UsageError(
                f"{_flag(dest)} means nothing to a job whose workers stay the same: let it go on with fewer with "
                "--min-np, or name its hosts with --host-discovery-script."
            )


def _refuse_what_stays(values: Mapping[str, Any]) -> None:
    """Some words speak of workers that stay where and what they are."""
    if values["map_by"] is MapBy.NODE:
        raise UsageError(
            "-map-by node deals out a number of workers that stays the same, and that of an elastic job does not: "
            "leave it out."
        )
    if values["stdin_rank"] is not None:
        raise UsageError(
            "--stdin needs a worker that lasts as long as the job, and those of an elastic job may be replaced: let "
            "the program read a file."
        )


def _refuse_two_sources(values: Mapping[str, Any]) -> None:
    """Either a script names the hosts, or they are fixed."""
    if values["script"] is None:
        if "slots_per_host" in values["typed"]:
            raise UsageError("--slots-per-host is for hosts that --host-discovery-script names, which is not given.")
        return
    for dest in ("hosts", "hostfile"):
        if values[dest] is not None:
            raise UsageError(
                f"{_flag(dest)} and --host-discovery-script both say which hosts to use: give only one of them."
            )
    if values["oversubscribe"]:
        raise UsageError(
            "--oversubscribe adds slots to hosts that stay the same; with --host-discovery-script let the script name "
            "more slots, or give --slots-per-host."
        )


def find_idle(values: Mapping[str, Any]) -> Mapping[str, str]:
    """The options that were given and mean nothing to such a job, by dest, with the flag of each."""
    if values["script"] is not None:
        return {}
    idle = ELASTIC if values["min_size"] is None else ("slots_per_host",)
    return {dest: _flag(dest) for dest in idle if dest in values["typed"]}


def choose_joining(values: Mapping[str, Any], here: Path) -> Joining | None:
    """What the options' values, by dest, say of it; None for a job whose hosts are named.

    Raises:
        UsageError: they contradict each other.
    """
    if not values["wait_for_agents"]:
        for dest in _OF_AGENTS:
            if values[dest] is not None:
                raise UsageError(
                    f"{_flag(dest)} is for a job that waits for its agents: give --wait-for-agents as well."
                )
        return None
    for dest in _OF_NAMED_HOSTS:
        if values[dest]:
            raise UsageError(
                f"{_flag(dest)} is for hosts that hvdrun goes to, and with --wait-for-agents they come: give only one "
                "of them."
            )
    if values["oversubscribe"]:
        raise UsageError("--oversubscribe is for named hosts; with --wait-for-agents give the agents more --slots.")
    token_file = values["token_file"]
    return Joining(values["bind"], None if token_file is None else here / token_file, values["map_by"])


def refuse_two_ways(values: Mapping[str, Any]) -> None:
    """Options of hvdrun's own SSH mean nothing to another command.

    Raises:
        UsageError: both are given.
    """
    for dest in _OF_OWN_SSH:
        if values["rsh"] and values[dest]:
            raise UsageError(
                f"{_flag(dest)} is for hvdrun's own SSH, and --rsh replaces that: write it into --rsh's command."
            )


def _flag(dest: str) -> str:
    return BY_DEST[dest].flags[0]
