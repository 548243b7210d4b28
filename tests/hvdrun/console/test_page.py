"""The first-cause page in words."""

from dataclasses import replace

import pytest

from hvdrun import __version__
from hvdrun.console.page import (
    Page,
    describe_seconds,
    render_annotation,
    render_page,
    strip_controls,
)
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import describe_ranks, describe_returncode


def test_the_page_names_the_failed_worker_its_end_its_last_lines_and_the_ended_workers() -> None:
    page = Page(
        rank=1,
        worker=Worker(Slot("server1", 1), 1),
        returncode=3,
        seconds=12.34,
        last_lines=("Traceback (most recent call last):", "", "ValueError: \x1b[31mbad\x1b[0m"),
        ended_ranks=(0, 2, 3),
    )
    assert render_page(page) == (
        "hvdrun: rank 1 on server1 (slot 1) failed first after 12.3 s: exit code 3\n"
        "  It wrote last:\n"
        "  | Traceback (most recent call last):\n"
        "  |\n"
        "  | ValueError: bad\n"
        "  hvdrun then stopped ranks 0, 2-3.\n"
    )


def test_a_page_leaves_out_what_is_not_known() -> None:
    assert render_page(Page(rank=0, returncode=1)) == "hvdrun: rank 0 failed first: exit code 1\n"
    assert render_page(Page()) == "hvdrun: the job failed.\n"


def test_without_a_single_culprit_the_reason_is_the_headline() -> None:
    page = Page(reason="host b was lost: it was silent for 30 s.", seconds=3723, ended_ranks=(0,))
    assert render_page(page) == (
        "hvdrun: host b was lost: it was silent for 30 s, after 1 h 2 min.\n  hvdrun then stopped rank 0.\n"
    )


def test_with_a_culprit_the_reason_is_shown_below() -> None:
    page = Page(rank=0, returncode=127, reason="the command 'x' was not found.")
    assert render_page(page).splitlines()[1] == "  the command 'x' was not found."


@pytest.mark.parametrize(
    ("returncode", "hint"),
    [
        (-9, "memory runs out"),
        (137, "memory runs out"),
        (-11, "faulthandler's lines show where"),
        (139, "faulthandler's lines show where"),
        (-7, "shared memory"),
        (-15, "Nothing in hvdrun sent this signal"),
        (143, "Nothing in hvdrun sent this signal"),
    ],
)
def test_a_signal_with_a_likely_cause_comes_with_a_hint(returncode: int, hint: str) -> None:
    assert hint in render_page(Page(rank=0, returncode=returncode))


def test_the_error_for_a_python_without_hvdrun_says_what_to_install_and_where() -> None:
    last = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'worker_runtime'")
    page = render_page(Page(rank=0, worker=Worker(Slot("b", 0), 1), returncode=1, last_lines=last))
    assert f"on b has no hvdrun: install there the wheel or the checkout of version {__version__}" in page


def test_a_worker_that_was_started_alone_learns_why_it_has_no_rank() -> None:
    last = ("ValueError: Error initializing torch.distributed: environment variable RANK expected, but not set",)
    page = render_page(Page(rank=0, last_lines=last))
    assert "started alone, later than the others, has no RANK: with --max-restarts" in page


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        ("OSError: [Errno 28] No space left on device: '/data/model.pt'", "A disk of b is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "a quota is used up"),
        ("ModuleNotFoundError: No module named 'datasets'", "An import failed on b: --dry-run shows which Python"),
    ],
)
def test_an_error_of_one_host_comes_with_what_to_look_at(last: str, hint: str) -> None:
    assert hint in render_page(Page(rank=0, worker=Worker(Slot("b", 0), 1), returncode=1, last_lines=(last,)))


def test_the_doctor_is_named_after_a_failed_import_where_it_can_compare_hosts() -> None:
    last = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'datasets'")
    page = Page(rank=0, worker=Worker(Slot("b", 0), 1), returncode=1, last_lines=last)
    assert "on b: --dry-run shows which Python runs the script.\n" in render_page(page)
    shown = render_page(replace(page, has_comparable_hosts=True))
    assert "runs the script, and hvdrun doctor -H HOSTS whether Python or torch differ between hosts.\n" in shown


def test_the_culprit_is_the_headline_and_the_failures_it_caused_are_below() -> None:
    page = Page(
        reason="it ended with SIGKILL (signal 9)",
        culprit="the sequencer on a",
        rank=1,
        worker=Worker(Slot("b", 0), 1),
        returncode=1,
        seconds=2.0,
        last_lines=("x",),
    )
    assert render_page(page) == (
        "hvdrun: the sequencer on a is the first cause after 2.0 s: it ended with SIGKILL (signal 9)\n"
        "  Rank 1 on b (slot 0) failed because of that: exit code 1.\n"
        "  It wrote last:\n"
        "  | x\n"
    )
    assert render_page(Page(reason="x", culprit="ranks 0, 2", rank=1)).startswith(
        "hvdrun: ranks 0, 2 are the first cause"
    )


def test_evidence_takes_the_place_of_a_hint() -> None:
    page = render_page(Page(rank=0, returncode=-9, evidence="The kernel did not kill it for memory."))
    assert page.splitlines()[1:] == ["  The kernel did not kill it for memory."]


@pytest.mark.parametrize("returncode", [1, 9, 11, 127, 128, -40, 255, None])
def test_other_errors_come_without_a_hint(returncode: int | None) -> None:
    assert len(render_page(Page(rank=0, returncode=returncode)).splitlines()) == 1


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (3, "exit code 3"),
        (-9, "killed by SIGKILL (signal 9)"),
        (-40, "killed by SIGRTMIN+6 (signal 40)"),
        (139, "exit code 139, with which a shell reports SIGSEGV (signal 11)"),
        (255, "exit code 255"),
    ],
)
def test_a_returncode_is_shown_in_words(returncode: int, words: str) -> None:
    assert describe_returncode(returncode) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((3,), "rank 3"), ((1, 0), "ranks 0-1"), ((0, 2, 3, 4, 9), "ranks 0, 2-4, 9"), (range(1000), "ranks 0-999")],
)
def test_ranks_are_shown_in_runs(ranks: tuple[int, ...], words: str) -> None:
    assert describe_ranks(ranks) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (59.4, "59.4 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.9, "1 h 0 min"),
        (86400, "24 h 0 min"),
    ],
)
def test_seconds_are_shown_as_people_say_them(seconds: float, words: str) -> None:
    assert describe_seconds(seconds) == words


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\tb", "a\tb"),
        ("a\x08\x00\x7f\x9bb\r", "ab"),
        ("\x1b", ""),
        ("[31m stays", "[31m stays"),
        ("é 日本 💥", "é 日本 💥"),
    ],
)
def test_control_characters_are_taken_out(text: str, clean: str) -> None:
    assert strip_controls(text) == clean


def test_notes_are_the_last_lines() -> None:
    page = render_page(
        Page(reason="too few workers.", last_lines=("x",), notes=("Lost before: b.", "Exit code\x1b[1m 75"))
    )
    assert page == "hvdrun: too few workers.\n  It wrote last:\n  | x\n  Lost before: b.\n  Exit code 75\n"


def test_an_annotation_is_one_line_with_the_innermost_place_of_the_traceback() -> None:
    lines = ('  File "/a,b/train.py", line 3, in main', '  File "/a,b/model.py", line 7, in step', "ValueError: 5%")
    assert render_annotation(Page(rank=0, returncode=1, last_lines=lines)) == (
        "::error file=/a%2Cb/model.py,line=7,title=hvdrun::rank 0 failed first: exit code 1%0A  It wrote last:%0A"
        '  |   File "/a,b/train.py", line 3, in main%0A  |   File "/a,b/model.py", line 7, in step%0A'
        "  | ValueError: 5%25\n"
    )
    torn = ("Traceback (most recent call last):", *lines, "  ...", *['  File "/lib/exit.py", line 9, in close'] * 2)
    assert "file=/a%2Cb/model.py,line=7," in render_annotation(Page(last_lines=torn))
    of_a_rank = tuple(f"[rank0]: {line}" for line in torn)
    assert "file=/a%2Cb/model.py,line=7," in render_annotation(Page(last_lines=of_a_rank))
    assert render_annotation(Page()) == "::error title=hvdrun::the job failed.\n"
