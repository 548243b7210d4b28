"""The table of options."""

import pytest

from hvdrun.options.table import BY_FLAG, OPTIONS
from hvdrun.processes.binding import BindTo
from hvdrun.shim.path import ShimMode
from hvdrun.spec.mapping import MapBy


def test_every_default_is_what_its_option_reads() -> None:
    typed = [(option, option.default.split()) for option in OPTIONS if option.default]
    assert all(len(words) == option.words for option, words in typed)
    defaults = {option.dest: [option.read(word, "default") for word in words] for option, words in typed}
    assert defaults == {
        "start_timeout_seconds": [120.0],
        "grace_seconds": [5.0],
        "launcher_timeout_seconds": [60.0],
        "elastic_timeout_seconds": [600.0],
        "failures_per_slot": [3],
        "forgiveness_seconds": [600.0],
        "cooldown_seconds": [10.0, 100.0],
        "bind_to": [BindTo.NONE],
        "map_by": [MapBy.SLOT],
        "horovod_shim": [ShimMode.AUTO],
    }


def test_no_flag_and_no_name_is_given_twice() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert len({option.dest for option in OPTIONS}) == len(OPTIONS)


def test_every_option_that_takes_a_value_says_which() -> None:
    for option in OPTIONS:
        assert bool(option.wanted) == bool(option.metavar) == option.takes_value
        assert len(option.metavar.split()) == option.arity
        assert option.help.endswith(".")


def test_help_names_the_lease_of_both_kinds_of_jobs() -> None:
    lease = BY_FLAG["--lease"]
    assert lease.default is None
    assert "5s in elastic jobs, 30s in others" in lease.help


def test_a_switch_has_no_value_to_read() -> None:
    with pytest.raises(TypeError, match="-v"):
        BY_FLAG["-v"].read("1", "-v")
