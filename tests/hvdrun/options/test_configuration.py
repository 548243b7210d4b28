"""Configuration files: what they give to which option, and what is refused where."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvdrun.cli.program import read_spec
from hvdrun.errors import BadValueError, HvdrunError, UsageError
from hvdrun.options.configuration import KEYS, read_configuration, write_configuration
from hvdrun.options.languages import ConfigurationError
from hvdrun.options.option import Option, RawValues
from hvdrun.options.table import OPTIONS
from hvdrun.options.values import resolve

JOB = """\
np: 8                       # the same keys as the flags
hosts: [server1:4, server2:4]
min_np: 4
x: [NCCL_DEBUG=INFO, LANG]
blacklist-cooldown-range: [10, 100]
mca: [[pml, ob1], [btl, ^openib]]
verbose: on
ssh-port: ~
"""


def write(folder: Path, text: str, name: str = "job.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_yaml_gives_texts_as_they_would_be_typed(tmp_path: Path) -> None:
    found = read_configuration(write(tmp_path, JOB))
    assert found.given == {
        "size": "8",
        "hosts": "server1:4,server2:4",
        "min_size": "4",
        "forwarded": ("NCCL_DEBUG=INFO", "LANG"),
        "cooldown_seconds": ("10", "100"),
        "mca": (("pml", "ob1"), ("btl", "^openib")),
        "verbose": True,
    }
    assert found.sources["min_size"].endswith("job.yaml, line 3")


def test_toml_gives_the_same_values_as_yaml(tmp_path: Path) -> None:
    text = 'np = 8\ngrace = 1.5\nx = "A=1"\nmca = ["pml", "ob1"]\nno-prefix = true\ndry-run = false\n'
    assert read_configuration(write(tmp_path, text, "job.toml")).given == {
        "size": "8",
        "grace_seconds": "1.5",
        "forwarded": ("A=1",),
        "mca": (("pml", "ob1"),),
        "marks_ranks": True,
        "dry_run": False,
    }


@pytest.mark.parametrize(
    ("text", "typed", "command"),
    [
        ("command: echo 'a b' --lr 0.10 # no\n", [], ("echo", "a b", "--lr", "0.10")),
        ("command: [echo, a b, 0.10, --x]\n", [], ("echo", "a b", "0.10", "--x")),
        ("command: [echo]\n", ["true", "x"], ("true", "x")),
        ("command:\n", ["true"], ("true",)),
    ],
)
def test_the_command_of_the_file_is_run_where_no_command_is_typed(
    tmp_path: Path, text: str, typed: list[str], command: tuple[str, ...]
) -> None:
    assert read_spec(["--config-file", write(tmp_path, f"np: 2\n{text}"), *typed]).workers.command == command


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_configuration_sets_no_option(tmp_path: Path, text: str) -> None:
    assert read_configuration(write(tmp_path, text)).given == {}


def test_every_option_but_those_that_act_or_name_files_has_a_key() -> None:
    without = {option.dest for option in OPTIONS} - {option.dest for option in KEYS.values()}
    assert without == {"completion", "help", "version", "config_file", "write_config"}
    assert all(len(key) > 1 or key == "x" for key in KEYS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("np: 2\nmin-pn: 1\n", "job.yaml, line 2: there is no key 'min-pn': did you mean min-np?"),
        ("np: 2\nstal_check:\n  enabled: no\n", "line 2: there is no key 'stal_check': did you mean stall_check?"),
        (
            "stall_check:\n  enable: no\n",
            "line 2: there is no key 'stall_check.enable': did you mean stall_check.enabled?",
        ),
        ("zzz: 2\n", "line 1: there is no key 'zzz': hvdrun --help all lists them."),
        ("config-file: x\n", "line 1: --config-file belongs on the command line, and not in a file."),
        ("np: 2\nnp: 3\n", "line 2: the key 'np' is given twice."),
        ("np: 2\nnum-proc: 3\n", "line 2: np and num-proc mean the same."),
        ("\nnp: [2]\n", "line 2: np takes a number of workers from 1 to 100000, as in -np 2."),
        ("hosts: [a, [b]]\n", "line 1: hosts takes hosts"),
        ("np: {a: 2}\n", "line 1: np takes a number"),
        ("x: [[A]]\n", "line 1: x takes a variable"),
        ("mca: pml\n", "line 1: mca takes two words"),
        ("blacklist-cooldown-range: 10\n", "line 1: blacklist-cooldown-range takes two times"),
        ("verbose: maybe\n", "line 1: verbose takes true or false."),
        ("stall_check: 3\n", "line 1: stall_check takes keys with values."),
        ("stall_check:\n  enabled: 3\n", "line 2: stall_check.enabled takes true or false."),
        ("params:\n  cache_capacity: -1\n", "line 2: --cache-capacity takes a whole number of at least 0, not '-1'."),
        ("params:\n  cache_capacity: [1]\n", "line 2: params.cache_capacity takes one value."),
        ("command: {a: b}\n", "line 1: command takes a list of words or a text, as in command: python train.py."),
        ("command: [a, [b]]\n", "line 1: command takes a list of words or a text"),
        (
            "np: 1\ncommand: a 'b\n",
            "line 2: command takes a list of words or a text, as in command: python train.py: No cl",
        ),
        ("comand: a\n", "line 1: there is no key 'comand': did you mean command?"),
        ("controller: x\n", "line 1: controller takes gloo or mpi."),
        ("- np\n", "line 1: keys with values are expected"),
        ("np: 2\nhosts: [\n", "line 3: this is no YAML"),
        ("[a]: 2\n", "line 1: a key must be a word."),
        ("x: &a [*a]\n", "nested too deeply"),
        ("x: " + "[" * 5000, "nested too deeply"),
        ("np: \x01\n", "this is no YAML"),
        ('np: 1\nx: "A=\\ud800"\n', r"job.yaml, line 2: 'A=\ud800' cannot stand on a command line."),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(write(tmp_path, text))
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_malformed_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"job.toml: this is no TOML: .*line 1"):
        read_configuration(write(tmp_path, "np 2\n", "job.toml"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^/dev/zero: it is longer than \d+ bytes\.$"):
        read_configuration("/dev/zero")
    (tmp_path / "latin").write_bytes(b"\xe9")
    for name, reason in (("absent", "No such file"), (".", "Is a directory"), ("latin", "no text in UTF-8")):
        with pytest.raises(ConfigurationError, match=reason):
            read_configuration(str(tmp_path / name))
    for name in ("", "-"):
        with pytest.raises(BadValueError, match=f"^--config-file takes the name of a file, as in .*, not '{name}'"):
            read_configuration(name)


def test_the_error_of_a_wrong_value_names_file_and_line(tmp_path: Path) -> None:
    name = write(tmp_path, "np: 2\ngrace: soon\n")
    with pytest.raises(HvdrunError) as caught:
        read_spec(["--config-file", name, "true"])
    assert (
        str(caught.value)
        == f"grace in {name}, line 2 takes a time from 0 to 8784h, in ms, s, m or h, as in --grace 5s, not 'soon'."
    )


def test_horovods_sections_mean_what_its_options_mean(tmp_path: Path) -> None:
    text = (
        "controller: mpi\nx: [A=1]\nparams:\n  fusion_threshold_mb: 32\n  hierarchical_allreduce: true\n"
        "  cycle_time_ms: null\nautotune:\nstall_check:\n  enabled: true\n  warning_time_seconds: 30\n"
        "logging:\n  level: DEBUG\n"
    )
    found = read_configuration(write(tmp_path, text))
    stalls = ("HOROVOD_STALL_CHECK_DISABLE=0", "HOROVOD_STALL_CHECK_TIME_SECONDS=30")
    assert found.given == {"forwarded": ("A=1", *stalls), "verbose": True}
    flags = [remark.partition(" has no effect")[0] for remark in found.remarks]
    assert flags == ["--mpi", "--fusion-threshold-mb", "--hierarchical-allreduce"]


def test_horovodrun_remarks_once_on_unknown_keys(tmp_path: Path) -> None:
    found = read_configuration(write(tmp_path, "abc: 1\nparams:\n  xyz: 2\nnp: 2\n"), ignores_unknown=True)
    assert found.given == {"size": "2"}
    (remark,) = found.remarks
    assert "'abc'" in remark
    assert "'params.xyz'" in remark


def test_without_a_file_no_yaml_library_is_imported() -> None:
    program = (
        "import sys; from hvdrun.cli.program import main, read_spec; read_spec(['-np', '2', 'true']); "
        "print(*{'yaml', 'tomllib', 'hvdrun.options.horovodrun', 'hvdrun.options.configuration'} "
        "& sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"


def test_without_pyyaml_toml_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match="install pyyaml, or write the file in TOML"):
        read_configuration(write(tmp_path, "np: 2\n"))


# What some option or other reads, and what YAML or TOML might take for something else.
TEXTS = (
    *("1", "2", "007", "1_000", "0x10", "1.5h", "500ms", "30", "12:30:45", "2026-01-31", ".5", "1e3"),
    *(
        "slot",
        "node",
        "none",
        "core",
        "gloo",
        "auto",
        "on",
        "off",
        "yes",
        "null",
        "Null",
        "text",
        "error",
        "~",
        "true",
        "=",
    ),
    *("eth0,ib*", "10.1.0.0/16", "a:4,b:4", "/opt/venv/bin/python", "/etc/passwd", "A=1", "x: y"),
    *("# no", "- a", "[a]", "{a}", "&a", "*a", "!a", "%a", "@a", "`a`", "'a'", '"a"'),
    *("a\\b", "a\nb", "\ta ", "é", "\x7f", "\x85\u2028\ufeff", "\U0001f600"),
    "\udc80",  # a byte that is no text in UTF-8, as Python has it in arguments
)
CONFIGURABLE = [option for option in OPTIONS if option in KEYS.values() and option.dest != "dry_run"]


def is_read(option: Option, text: str) -> bool:
    try:
        option.read(text, "here")
    except UsageError:
        return False
    return True


def draw_given(option: Option) -> st.SearchStrategy[RawValues]:
    if not option.takes_value:
        return st.just(True)  # noqa: FBT003 - a value
    word = st.sampled_from([text for text in TEXTS if is_read(option, text)])
    once: st.SearchStrategy[Any] = word if option.words == 1 else st.tuples(*[word] * option.words)
    return st.lists(once, max_size=3).map(tuple) if option.repeats else once


def read_values(filed: Mapping[str, RawValues]) -> Mapping[str, Any]:
    return {dest: value for dest, value in resolve({}, filed, {}).values.items() if dest != "typed"}


@given(
    given_=st.fixed_dictionaries({}, optional={option.dest: draw_given(option) for option in CONFIGURABLE}),
    command=st.lists(st.sampled_from(TEXTS)).map(tuple),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_a_written_file_gives_the_same_values(
    tmp_path: Path, given_: Mapping[str, RawValues], command: tuple[str, ...]
) -> None:
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


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        write_configuration(tmp_path / "absent" / "job.yaml", {})
    with pytest.raises(ConfigurationError, match="write YAML"):
        write_configuration(tmp_path / "job.toml", {"forwarded": (os.fsdecode(b"A=\x80"),)})


def test_a_written_file_is_private_though_a_public_one_existed(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("old: " + "x" * 1000)
    path.chmod(0o644)
    write_configuration(path, {"forwarded": ("HF_TOKEN=hunter2",)})
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("other"), os.mkfifo, Path.mkdir])
def test_no_link_and_no_special_file_is_written_through_or_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "job.yaml"
    (tmp_path / "other").write_text("mine")
    make(path)
    with pytest.raises(ConfigurationError, match="it is a link, a folder or a device; name a file"):
        write_configuration(path, {"verbose": "true"})
    assert (tmp_path / "other").read_text() == "mine"
    assert not stat.S_ISREG(path.lstat().st_mode)


def test_aliases_of_aliases_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 40)}]" for n in range(1, 6)]
    with pytest.raises(ConfigurationError, match=r"job\.yaml, line \d+: aliases \(\*name\) give it more than 100000"):
        read_configuration(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("timeline: t.json\n", {"timeline": "t.json"}),
        ("timeline:\n", {}),
        (
            "timeline:\n  filename: t.json\n  mark_cycles: true\n",
            {"forwarded": ("HOROVOD_TIMELINE=t.json", "HOROVOD_TIMELINE_MARK_CYCLES=1")},
        ),
        ("timeline:\n  mark-cycles: true\n", {"forwarded": ("HOROVOD_TIMELINE_MARK_CYCLES=1",)}),
    ],
)
def test_a_timeline_is_an_option_or_a_section_of_horovod(tmp_path: Path, text: str, given: dict[str, object]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_configuration(str(path)).given == given
