"""horovodrun's command line: what it means in hvdrun, and what is refused."""

import pytest

from hvdrun.errors import HvdrunError
from hvdrun.options.configuration import SECTIONS
from hvdrun.options.horovodrun import BY_FLAG, OPTIONS, parse, translate
from hvdrun.options.table import BY_DEST


def test_no_flag_stands_twice_and_an_option_of_hvdrun_has_the_same_flags() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(set(flags)) == len(flags)
    same = [option for option in OPTIONS if option.help.startswith("As hvdrun's ")]
    assert len(same) == 20
    assert all(set(option.flags) <= set(BY_DEST[option.dest].flags) for option in same)
    assert {flag for keys in SECTIONS.values() for flags in keys.values() for flag in flags.split()} <= set(BY_FLAG)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("-np 4", {"size": "4"}),
        ("--num-proc=4", {"size": "4"}),
        ("--num-p 4 --verb", {"size": "4", "verbose": True}),
        ("--min-n 2 --max-num-proc 3", {"min_size": "2", "max_size": "3"}),
        ("-p2222 -i/key -Ha:1", {"ssh_port": "2222", "ssh_identity_file": "/key", "hosts": "a:1"}),
        ("-hostfile f", {"hostfile": "f"}),
        ("--blacklist-cooldown-range 10 100", {"cooldown_seconds": ("10", "100")}),
        ("--network-interface a --network-interfaces b,c", {"interfaces": ("a", "b,c")}),
        ("-np 2 -np 3", {"size": "3"}),
        ("-prefix-timestamp", {"marks_times": True}),
        ("--output-filename d --config-file c", {"output_folder": "d", "config_file": "c"}),
        ("--no-stall-check", {"forwarded": ("HOROVOD_STALL_CHECK_DISABLE=1",)}),
        ("--stall-check-warning 9 --tcp", {"forwarded": ("HOROVOD_STALL_CHECK_TIME_SECONDS=9", "NCCL_IB_DISABLE=1")}),
        ("--timeline-f t", {"forwarded": ("HOROVOD_TIMELINE=t",)}),
        ("--timeline-mark-cycles", {"forwarded": ("HOROVOD_TIMELINE_MARK_CYCLES=1",)}),
        ("--log-level DEBUG", {"verbose": True}),
        ("--log-level ERROR --gloo --disable-cache", {}),
    ],
)
def test_an_option_of_horovodrun_gives_the_value_of_hvdruns_option(words: str, given: dict[str, object]) -> None:
    typed, command = parse([*words.split(), "python", "train.py", "--num", "5"])
    meant = translate(typed)
    assert (meant.given, meant.remarks, command) == (given, [], ("python", "train.py", "--num", "5"))


def test_options_without_an_effect_get_one_remark_for_each_reason() -> None:
    words = "--cycle-time-ms 3.5 --autotune --cycle-time 4 --mpi --hierarchical-allreduce --mpi-args=-x"
    meant = translate(parse(words.split())[0])
    assert meant.given == {}
    assert [remark.partition(":")[0] for remark in meant.remarks] == [
        "--cycle-time-ms, --autotune have no effect",
        "--mpi, --mpi-args have no effect",
        "--hierarchical-allreduce has no effect",
    ]


@pytest.mark.parametrize("words", ["-- python -np 3", "python -np 3", "- -np 3"])
def test_the_command_is_never_looked_into(words: str) -> None:
    typed, command = parse(["--gloo", *words.split()])
    assert len(typed) == 1
    assert command == tuple(word for word in words.split() if word != "--")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("-H a:1 -hostfile f", "-hostfile and -H exclude each other"),
        ("-H a:1 --host-discovery s", "--host-discovery-script and -H exclude each other"),
        ("--autotune --no-autotune", "exclude each other"),
        ("--torus-allreduce --no-torus-allreduce", "exclude each other"),
        ("--hierarchical-allgather --no-hierarchical-allgather", "exclude each other"),
        ("--timeline-mark-cycles --no-timeline-mark-cycles", "exclude each other"),
        ("--stall-check --no-stall-check", "exclude each other"),
        ("--log-with-timestamp -prefix-timestamp", "exclude each other"),
        ("--log-hide-timestamp --log-without-timestamp", "exclude each other"),
        ("--hier", "--hier could be --hierarchical-allgather or --hierarchical-allreduce"),
        ("--autotune-w -1", "--autotune-warmup-samples takes a whole number of at least 0, not '-1'"),
        ("--autotune-gaussian-process-noise 1.5", "takes a number from 0 to 1"),
        ("--cycle-time-ms nan", "takes a number of at least 0"),
        ("--log-level LOUD", "takes TRACE, DEBUG, INFO, WARNING, ERROR or FATAL"),
        ("--verbose=1", "--verbose takes no value"),
        ("--blacklist-cooldown-range 1", "--blacklist-cooldown-range lacks its value"),
        ("--nproc 3", "there is no option '--nproc'"),
        ("--nproc_per_node=2", "there is no option '--nproc_per_node': -np is the number of all workers"),
        ("-z", "there is no option '-z'"),
        ("--autotuen", "there is no option '--autotuen': did you mean --autotune?"),
    ],
)
def test_wrong_use_is_refused_with_2_as_argparse_does_it(words: str, sentence: str) -> None:
    with pytest.raises(HvdrunError) as caught:
        translate(parse(words.split())[0])
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_same_spelling_twice_excludes_nothing() -> None:
    assert translate(parse(["-H", "a:1", "--hosts", "b:1"])[0]).given == {"hosts": "b:1"}
