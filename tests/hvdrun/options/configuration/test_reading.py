"""Configuration files: what they give to which option, and what is refused where."""

import subprocess
import sys
from pathlib import Path

import pytest

from hvdrun.cli.program import read_spec
from hvdrun.errors import HvdrunError
from hvdrun.options import OPTIONS
from hvdrun.options.configuration.reading import KEYS, read_configuration
from hvdrun.options.configuration.tree import ConfigurationError

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


def test_toml_gives_the_same(tmp_path: Path) -> None:
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
def test_the_files_command_is_run_where_none_is_typed(
    tmp_path: Path, text: str, typed: list[str], command: tuple[str, ...]
) -> None:
    assert read_spec(["--config-file", write(tmp_path, f"np: 2\n{text}"), *typed]).workers.command == command


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_gives_nothing(tmp_path: Path, text: str) -> None:
    assert read_configuration(write(tmp_path, text)).given == {}


def test_every_option_but_those_that_act_or_name_files_has_a_key() -> None:
    without = {option.dest for option in OPTIONS} - {option.dest for option in KEYS.values()}
    assert without == {"help", "version", "config_file", "write_config"}
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
        ("zzz: 2\n", "line 1: there is no key 'zzz': hvdrun --help lists all options."),
        ("config-file: x\n", "line 1: there is no key 'config-file'"),
        ("np: 2\nnp: 3\n", "line 2: the key 'np' stands there twice."),
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
def test_what_is_wrong_in_a_file_is_refused_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(write(tmp_path, text))
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_toml_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"job.toml: this is no TOML: .*line 1"):
        read_configuration(write(tmp_path, "np 2\n", "job.toml"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^/dev/zero: it is longer than \d+ bytes\.$"):
        read_configuration("/dev/zero")
    (tmp_path / "latin").write_bytes(b"\xe9")
    for name, reason in (("absent", "No such file"), (".", "Is a directory"), ("latin", "no text in UTF-8")):
        with pytest.raises(ConfigurationError, match=reason):
            read_configuration(str(tmp_path / name))
    with pytest.raises(ConfigurationError, match="no file can have such a name"):
        read_configuration("")


def test_a_value_that_its_option_refuses_is_said_with_its_place(tmp_path: Path) -> None:
    name = write(tmp_path, "np: 2\ngrace: soon\n")
    with pytest.raises(HvdrunError) as caught:
        read_spec(["--config-file", name, "true"])
    assert str(caught.value) == f"grace in {name}, line 2 takes a time, as in --grace 5s, not 'soon'."


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
        "print(*{'yaml', 'tomllib', 'hvdrun.options.horovodrun.table', 'hvdrun.options.configuration'} "
        "& sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"


def test_without_pyyaml_toml_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match="install pyyaml, or write the file in TOML"):
        read_configuration(write(tmp_path, "np: 2\n"))
