"""Flags before the command: where the command begins, and what a mistyped flag probably means."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options.flags import explain_unknown, find_option, suggest_option
from hvdrun.options.words import read_words


def find_command(words: Sequence[str]) -> int:
    """How many words stand before the command."""
    return read_words(words, find_option)[1]


@pytest.mark.parametrize(
    ("words", "index"),
    [
        ("", 0),
        ("-np 2", 2),
        ("python train.py -np 3", 0),
        ("-np 2 python --grcae", 2),
        ("-np 2 -- python", 3),
        ("-np 2 -- -np", 3),
        ("--num-proc=2 -H a:1 -v python", 4),
        ("-np -1 python", 2),
        ("-np -- python", 2),
        ("-v - x", 1),
        ("-n 1 -p 22 -i key python", 6),
        ("-x A=1 -x B python", 4),
        ("-mca pml ob1 -mca btl ^openib python", 6),
        ("--mca=pml ob1 python", 2),
        ("-np 4 -H localhost:4 -bind-to none -map-by slot python train.py", 8),
    ],
)
def test_the_command_begins_at_the_first_word_that_is_neither_flag_nor_value(words: str, index: int) -> None:
    assert find_command(words.split()) == index


# Pairs: a mistyped word, and the suggestion for it; a word alone gets none.
MISTYPED = (
    "--grcae --grace, --grace-period --grace, --start --start-timeout, --num_proc --num-proc, --npp --np, -pn -np, "
    "-nproc --num-proc, -np4 -np 4, -n4 -n 4, -Ha:4 -H a:4, -hots -host, -Hosts --hosts, -hostfil -hostfile, "
    "--host-file --hostfile, -verbose --verbose, --verbsoe --verbose, --vresion --version, --Help --help, "
    "-p2222 -p 2222, -xNCCL_DEBUG -x NCCL_DEBUG, -bindto -bind-to, --bind-to-core --bind-to, --mapby --map-by, "
    "--workdir --wdir, -MCA -mca, --minnp --min-np, --discovery-script --host-discovery-script, "
    "--fusion-threshold-mb, -z, ---"
)


@pytest.mark.parametrize("pair", MISTYPED.split(", "))
def test_a_mistyped_flag_gets_the_likely_one_suggested(pair: str) -> None:
    word, _, suggestion = pair.partition(" ")
    assert suggest_option(word) == (suggestion or None)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("-m train", "python -m module"),
        ("--run-path train.py", "python script.py"),
        ("--nproc-per-node=2 train.py", "-np is the number of all workers"),
        ("-v --nproc_per_node 2 train.py", "-np is the number of all workers"),
        ("--standalone train.py", "leave it out"),
        ("--rdzv_backend c10d train.py", "leave it out"),
        ("--nnodes 2 train.py", "-H names the hosts"),
        ("--log-dir logs train.py", "--output-filename"),
        ("-bynode -np 2 python train.py", "-map-by node"),
        ("--byslot -np 2 python train.py", "leave it out"),
    ],
)
def test_the_error_of_another_program_s_flag_has_a_remedy(words: str, remedy: str) -> None:
    with pytest.raises(UnknownOptionError, match=remedy):
        find_command(words.split())


TORCHRUN = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone monitor-interval start-method
event-log-handler role m module no-python run-path log-dir r redirects t tee local-ranks-filter duplicate-stdout-filters
duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle
shutdown-timeout virtual-local-rank
"""  # of torch 2.13


def test_every_flag_of_torchrun_has_its_answer() -> None:
    flags = [f"--{word}" if len(word) > 1 else f"-{word}" for word in TORCHRUN.split()]
    spelled = [*flags, *(f"--{flag[2:].replace('-', '_')}" for flag in flags if flag.startswith("--"))]
    assert [flag for flag in spelled if str(explain_unknown(flag)).endswith(("?", "lists all options."))] == []


def test_the_error_of_a_flag_of_horovodrun_names_horovodrun() -> None:
    assert str(explain_unknown("--autotune")).endswith("it is horovodrun's, and hvdrun horovodrun takes it.")


@pytest.mark.parametrize("words", ["--grcae=3 python", "-np 2 --grcae 3 python", "-v --grcae"])
def test_an_unknown_flag_is_named_without_its_value(words: str) -> None:
    with pytest.raises(UnknownOptionError, match="'--grcae': did you mean --grace") as caught:
        find_command(words.split())
    assert caught.value.option == "--grcae"


@pytest.mark.parametrize(("word", "meant"), [("-n=2", "-n 2"), ("-H=a:1", "-H a:1"), ("-v=1", "-v"), ("-n=", "-n")])
def test_a_short_flag_takes_no_equals_sign(word: str, meant: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        find_command([word, "true"])
    assert (caught.value.option, caught.value.suggestion) == (word, meant)


def test_a_switch_takes_no_value() -> None:
    with pytest.raises(UsageError, match=r"^--verbose takes no value\.$"):
        find_command(["--verbose=1", "true"])


@pytest.mark.parametrize("words", ["-mca", "-mca pml", "--mca=pml", "-np 2 -mca"])
def test_a_flag_of_two_words_is_refused_without_both(words: str) -> None:
    with pytest.raises(UsageError, match=r"^--?mca lacks its value: it takes two words"):
        find_command(words.split())


@pytest.mark.parametrize("flag", ["-np", "-H", "--hostfile", "--lease", "-x", "-p", "-i"])
def test_the_error_of_a_flag_without_its_value_has_an_example(flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} lacks its value: .* as in "):
        find_command(["-v", flag])


@given(st.text(min_size=1))
@example("H\r:")
def test_any_flag_is_known_or_refused_in_one_line(text: str) -> None:
    try:
        find_command([f"-{text}", "x"])
    except UsageError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either outcome is right
