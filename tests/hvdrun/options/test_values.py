"""Where an option's value comes from: the command line, the file, the environment, its default, in this order."""

from collections.abc import Mapping

import pytest

from hvdrun.errors import BadValueError
from hvdrun.options.option import RawValues
from hvdrun.options.values import resolve

VARIABLE = {"HOROVOD_START_TIMEOUT": "50"}


@pytest.mark.parametrize(
    ("typed", "filed", "environment", "seconds"),
    [
        ("30", "40", VARIABLE, 30.0),
        (None, "40", VARIABLE, 40.0),
        (None, None, VARIABLE, 50.0),
        (None, None, {"HOROVOD_START_TIMEOUT": ""}, 120.0),
        (None, None, {}, 120.0),
    ],
)
def test_the_nearest_source_of_a_value_counts(
    typed: str | None, filed: str | None, environment: Mapping[str, str], seconds: float
) -> None:
    first, second = ({} if text is None else {"start_timeout_seconds": text} for text in (typed, filed))
    resolved = resolve(first, second, environment)
    assert resolved.values["start_timeout_seconds"] == seconds
    assert ("start_timeout_seconds" in resolved.values["typed"]) == bool(typed or filed)


def test_a_value_that_another_source_replaces_is_not_read() -> None:
    resolve({"start_timeout_seconds": "30"}, {"start_timeout_seconds": "x"}, {"HOROVOD_START_TIMEOUT": "y"})


@pytest.mark.parametrize(
    ("typed", "filed", "environment", "source"),
    [
        ({"size": "x"}, {}, {}, "-np"),
        ({}, {"size": "x"}, {}, "np in job.yaml, line 1"),
        ({}, {}, {"HVD_BACKEND": "x"}, r"\$HVD_BACKEND"),
        ({}, {}, {"HVD_HOROVOD_SHIM": "x"}, r"\$HVD_HOROVOD_SHIM"),
    ],
)
def test_an_error_names_the_source(
    typed: Mapping[str, RawValues], filed: Mapping[str, RawValues], environment: Mapping[str, str], source: str
) -> None:
    with pytest.raises(BadValueError, match=f"^{source} takes"):
        resolve(typed, filed, environment, {"size": "np in job.yaml, line 1"})


def test_variables_add_up_and_other_lists_are_replaced() -> None:
    values = resolve(
        {"forwarded": ("B=2",), "mca": (("c", "d"),)}, {"forwarded": ("A=1",), "mca": (("a", "b"),)}, {}
    ).values
    assert values["forwarded"] == ("A=1", "B=2")
    assert values["mca"] == (("c", "d"),)


def test_typed_hosts_replace_every_source_of_hosts_in_the_file() -> None:
    values = resolve({"hosts": "a:2"}, {"script": "./hosts.sh", "hostfile": "hosts.txt", "size": "2"}, {}).values
    assert (values["hosts"], values["script"], values["hostfile"], values["size"]) == ("a:2", None, None, 2)


@pytest.mark.parametrize(
    ("typed", "filed", "level"),
    [({"verbose": True}, {"log_level": "error"}, "info"), ({"log_level": "error"}, {"verbose": True}, "error")],
)
def test_a_level_on_the_command_line_replaces_that_of_the_file(
    typed: Mapping[str, RawValues], filed: Mapping[str, RawValues], level: str
) -> None:
    values = resolve(typed, filed, {}).values
    assert (values["verbose"], values["log_level"]) == ("verbose" in typed, level)
    assert values["typed"] == typed.keys()
