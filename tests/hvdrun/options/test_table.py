"""The table of options."""

from dataclasses import fields

import pytest

from hvdrun.options.kinds import LogLevel
from hvdrun.options.table import BY_FLAG, OPTIONS
from hvdrun.processes.binding import BindTo
from hvdrun.shim.path import ShimMode
from hvdrun.spec.jobspec import Display, Workers
from hvdrun.spec.limits import Elasticity, Limits
from hvdrun.spec.log_format import LogFormat
from hvdrun.spec.mapping import MapBy
from hvdrun.spec.remote import Joining, Remote
from rendezvous.core.model import Recovery, Restarts

# The options that are no field of a JobSpec: hvdrun/options reads them by name, or they have no effect.
READ_BY_NAME = {"max_restarts", "oversubscribe", "hostfile", "wait_for_agents", "mca", "config_file", "write_config"}
WITHOUT_EFFECT = {"tag_output", "allow_run_as_root"}


def test_every_default_is_what_its_option_reads() -> None:
    typed = [(option, option.default.split()) for option in OPTIONS if option.default]
    assert all(len(words) == option.words for option, words in typed)
    defaults = {option.dest: [option.read(word, "default") for word in words] for option, words in typed}
    assert defaults == {
        "start_timeout_seconds": [120.0],
        "grace_seconds": [5.0],
        "launcher_timeout_seconds": [60.0],
        "server_timeout_seconds": [3600.0],
        "elastic_timeout_seconds": [600.0],
        "failures_per_slot": [3],
        "forgiveness_seconds": [600.0],
        "cooldown_seconds": [10.0, 100.0],
        "bind_to": [BindTo.NONE],
        "map_by": [MapBy.SLOT],
        "horovod_shim": [ShimMode.AUTO],
        "log_level": [LogLevel.INFO],
        "log_format": [LogFormat.TEXT],
    }


def test_no_flag_and_no_name_is_given_twice() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert len({option.dest for option in OPTIONS}) == len(OPTIONS)


def test_every_option_sets_a_field_of_the_job_or_is_listed_as_without_a_field() -> None:
    parts = (Workers, Display, Limits, Elasticity, Recovery, Restarts, Remote, Joining)
    names = {field.name for part in parts for field in fields(part)}
    dests = {option.dest for option in OPTIONS if not option.acts}
    assert dests - names == READ_BY_NAME | WITHOUT_EFFECT


def test_every_option_that_takes_a_value_says_which() -> None:
    for option in OPTIONS:
        assert bool(option.wanted) == bool(option.metavar) == option.takes_value
        assert len(option.metavar.split()) == option.arity
        assert option.help.endswith(".")


def test_help_names_the_lease_of_both_kinds_of_jobs() -> None:
    lease = BY_FLAG["--lease"]
    assert lease.default is None
    assert "5s in elastic jobs, 10s with --max-restarts, 30s in others" in lease.help


def test_a_switch_has_no_value_to_read() -> None:
    with pytest.raises(TypeError, match="-v"):
        BY_FLAG["-v"].read("1", "-v")
