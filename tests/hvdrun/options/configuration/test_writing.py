"""A file that was written gives, read again, what was given: a law of the whole table of options."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvdrun.cli.program import read_spec
from hvdrun.errors import BadValueError
from hvdrun.options import OPTIONS, Given, Option, settle
from hvdrun.options.configuration.file import KEYS, read_configuration, write_configuration
from hvdrun.options.configuration.languages import ConfigurationError

# What some option or other reads, and what YAML or TOML might take for something else.
TEXTS = (
    *("1", "2", "007", "1_000", "0x10", "1.5h", "500ms", "30", "12:30:45", "2026-01-31", ".5", "1e3"),
    *("slot", "node", "none", "core", "gloo", "auto", "on", "off", "yes", "null", "Null", "~", "true", "="),
    *("eth0,ib*", "10.1.0.0/16", "a:4,b:4", "/opt/venv/bin/python", "A=1", "x: y", "# no", "- a", "[a]", "{a}", "&a"),
    *(
        "*a",
        "!a",
        "%a",
        "@a",
        "`a`",
        "'a'",
        '"a"',
        "a\\b",
        "a\nb",
        "\ta ",
        "é",
        "\x7f",
        "\x85\u2028\ufeff",
        "\U0001f600",
    ),
    "\udc80",  # a byte that is no text in UTF-8, as Python has it in arguments
)
TOLD = [option for option in OPTIONS if option in KEYS.values() and option.dest != "dry_run"]


def is_read(option: Option, text: str) -> bool:
    try:
        option.read(text, "here")
    except BadValueError:
        return False
    return True


def draw_given(option: Option) -> st.SearchStrategy[Given]:
    if not option.takes_value:
        return st.just(True)  # noqa: FBT003 - a value
    word = st.sampled_from([text for text in TEXTS if is_read(option, text)])
    once: st.SearchStrategy[Any] = word if option.words == 1 else st.tuples(*[word] * option.words)
    return st.lists(once, max_size=3).map(tuple) if option.repeats else once


def read_values(filed: Mapping[str, Given]) -> Mapping[str, Any]:
    return {dest: value for dest, value in settle({}, filed, {}).values.items() if dest != "typed"}


@given(
    given_=st.fixed_dictionaries({}, optional={option.dest: draw_given(option) for option in TOLD}),
    command=st.lists(st.sampled_from(TEXTS)).map(tuple),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_what_is_written_is_read_again(tmp_path: Path, given_: Mapping[str, Given], command: tuple[str, ...]) -> None:
    for name in ("job.yaml", "job.toml"):
        try:
            write_configuration(tmp_path / name, given_, command)
        except ConfigurationError:
            assert name.endswith("toml")
            assert r"\udc80" in f"{given_}{command}"  # what only YAML can say
            continue
        found = read_configuration(str(tmp_path / name))
        assert (read_values(found.given), found.command) == (read_values(given_), command)


def test_the_written_file_gives_the_same_job(tmp_path: Path) -> None:
    written = tmp_path / "job.yaml"
    words = ["-np", "3", "-H", "a:2,b:2", "-x", "A=1: #", "--grace", "1.5", "-v", "--min-np", "2", "--nics", "eth0,ib*"]
    spec = read_spec([*words, "--output-filename", "logs", "--write-config", str(written), "true", "x"])
    assert read_spec(["--config-file", str(written)]) == spec
    assert written.read_text(encoding="utf-8").splitlines()[:3] == ["np: 3", 'x: ["A=1: #"]', 'hosts: "a:2,b:2"']
    assert stat.S_IMODE(written.stat().st_mode) & ~0o600 == 0


def test_limits_of_elastic_jobs_in_the_environment_are_no_part_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "700")
    for name, words in (("static.yaml", []), ("elastic.yaml", ["--min-np", "1"])):
        spec = read_spec(["-np", "2", *words, "--write-config", str(tmp_path / name), "true"])
        assert read_spec(["--config-file", str(tmp_path / name), "true"]) == spec
    assert (tmp_path / "static.yaml").read_text(encoding="utf-8") == "np: 2\ncommand: [true]\n"
    assert "elastic-timeout: 700" in (tmp_path / "elastic.yaml").read_text(encoding="utf-8")


def test_where_it_cannot_be_written_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        write_configuration(tmp_path / "absent" / "job.yaml", {})
    with pytest.raises(ConfigurationError, match="write YAML"):
        write_configuration(tmp_path / "job.toml", {"forwarded": (os.fsdecode(b"A=\x80"),)})
