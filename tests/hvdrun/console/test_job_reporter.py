"""What hvdrun prints of an elastic job: each change in one line, and in the end why the job failed."""

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hvdrun.console import Console, Page
from hvdrun.console.job_reporter import JobReporter
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity
from rendezvous.core import membership
from rendezvous.core.messages import Event, HostsChanged, Level, Log, Lost
from rendezvous.core.model import Generation, Host, Slot, Worker
from rendezvous.core.outcome import (
    Cause,
    Outcome,
    blame_host,
    blame_worker,
    describe_loss,
    fail_again,
    lose_state,
    succeed,
)
from rendezvous.core.state import State
from tests.hvdrun.specs import build_spec, with_fields
from tests.rendezvous.core.commands import parse_event, parse_policy
from tests.rendezvous.core.transcript import expand, find_size, play

ONE, TWO = Worker(Slot("a", 0), 1), Worker(Slot("b", 0), 1)
ELASTIC = build_spec(("true",), 2, (Host("a", 1), Host("b", 1)), Path("/"), Elasticity(1))
STATIC = with_fields(ELASTIC, elasticity=None)
GIVEN_UP = Log("rank 1 (b:0) did not join the others again within 60 s", Level.WARNING, TWO)


class Paper:
    """A console that keeps what is said."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.details: list[str] = []
        self.pages: list[Page] = []
        self.notice, self.verbose, self.page = self.notices.append, self.details.append, self.pages.append
        self.output = self

    def tail(self, worker: Worker) -> tuple[str, ...]:
        """See `OutputPrinter`."""
        return (f"last words of {worker}",)


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def reporter(paper: Paper) -> JobReporter:
    """That of an elastic job."""
    return make_reporter(paper)


def make_reporter(paper: Paper, spec: JobSpec = ELASTIC, clock: Callable[[], float] = time.monotonic) -> JobReporter:
    return JobReporter(spec, cast("Console", paper), clock)


def make_state(spec: JobSpec = ELASTIC, number: int = 1) -> State:
    """Both workers are members of a generation of this number."""
    state, _ = membership.step(membership.begin(spec.policy()), HostsChanged(spec.workers.hosts))
    return replace(state, generation=Generation(number, (ONE, TWO)))


STATE = make_state()


SILENT = "rank 0 cannot reach 10.0.0.3, which has acknowledged nothing for 3 s"
GOES_ON = "the job continues with 2 workers."


@pytest.mark.parametrize(
    ("story", "notices"),
    [
        (["join a:0 after=1", "join a:1 after=1"], []),
        (["join a:0 after=1 resize state", "join a:1 after=1 resize state"], []),
        (["join a:1 after=1 continue", f'join a:0 after=1 continue "error={SILENT}"'], [f"{SILENT}.", GOES_ON]),
        (
            [f'join a:0 after=1 form "error={SILENT}."', 'join a:1 after=1 form "error=so was rank 1"'],
            [f"{SILENT}.", GOES_ON],
        ),
        (
            ['join a:1 after=1 restore state "error=the shapes\n differ"', "join a:0 after=1 continue state"],
            ["rank 1 has restored its last commit: the shapes differ.", GOES_ON],
        ),
        (
            ['join a:1 after=1 continue "error=rank 0 has closed the connection"', "exit a:0 -9"],
            ["rank 0 (a:0) was lost: killed by SIGKILL (signal 9).", "the job continues with 1 worker."],
        ),
        (
            [
                f'join a:0 after=1 continue "error={SILENT}"',
                *("join a:1 after=1 continue", "join a:0 after=2 continue", "join a:1 after=2 continue"),
            ],
            [f"{SILENT}.", GOES_ON, GOES_ON],
        ),
    ],
    ids=["begin anew", "begin again", "cut off", "not connected", "restored", "lost as well", "twice"],
)
def test_the_reason_for_a_new_generation_is_reported_once_where_nobody_was_lost(
    paper: Paper, reporter: JobReporter, story: list[str], notices: list[str]
) -> None:
    run_story(reporter, "min=1 max=2 failures=any", "tick 0", "hosts a:2", "join a:0", "join a:1", *story)
    assert paper.notices == notices


def tell(reporter: JobReporter, state: State, event: Event) -> State:
    """The state after this event, whose logs the reporter prints."""
    state, effects = membership.step(state, event)
    for effect in effects:
        if isinstance(effect, Log):
            reporter.log(effect, state.outcome)
    return state


def run_story(reporter: JobReporter, policy: str, *story: str) -> State:
    """The state after these commands of a transcript."""
    state = membership.begin(parse_policy(policy.split()))
    for command in story:
        for words in expand(shlex.split(command), state):
            state = tell(reporter, state, parse_event(words, find_size(state)))
    return state


def lose(worker: Worker, rank: int, returncode: int) -> Log:
    return Log(describe_loss(worker, rank, returncode, None), Level.WARNING, worker)


def lose_host(reason: str, host: str = "b") -> Log:
    return Log(f"host {host} was lost: {reason}", Level.WARNING, host=host)


def test_a_worker_that_is_started_again_is_reported_once(paper: Paper, reporter: JobReporter) -> None:
    story = "hosts a:1 b:1", "join all", "declare all", "exit b:0 3", "join a:0 after=1 continue state", "report b"
    run_story(reporter, "min=1 max=2 failures=any", *story)
    assert paper.notices == [
        "rank 1 (b:0) was lost: exit code 3.",
        "a new worker is started in slot b:0.",
        "the job continues with 1 worker.",
    ]


def test_a_slot_or_a_host_that_is_left_alone_is_reported_once_each_time(paper: Paper, reporter: JobReporter) -> None:
    story = (
        "tick 1",
        "hosts a:3 b:1",
        'exit a:0 127 "not found"',
        "tick 2",
        'exit a:1 127 "no"',
        "lost b gone",
        "tick 3",
    )
    run_story(reporter, "min=1 max=4 failures=any", *story)
    cooldown = "10 s (--blacklist-cooldown-range)"
    why = "3 failures (--slot-failures) of workers that had trained no steps, or a command that cannot be started"
    assert [notice for notice in paper.notices if not notice.startswith("rank")] == [
        f"slot a:0 is closed for 600 s (--slot-cooldown): {why}, close a slot.",
        f"host a is closed for {cooldown}: half of its slots or more are closed: {why}, close one.",
        "host b was lost: gone.",
        f"host b is closed for {cooldown}: it was lost.",
    ]


def test_of_many_losses_of_one_kind_the_first_are_printed_and_the_others_counted(paper: Paper) -> None:
    now = [0.0]
    reporter = make_reporter(paper, clock=lambda: now[0])
    state = play("policy min=1 max=9 failures=any", "tick 1", f"hosts a:1 {' '.join(f'h{n}:1' for n in range(8))}")
    for host in range(8):
        state = tell(reporter, state, Lost(f"h{host}", f"h{host} is not known"))
    lost = [f"host h{host} was lost: h{host} is not known." for host in range(8)]
    left = [f"host h{host} is closed for 10 s (--blacklist-cooldown-range): it was lost." for host in range(8)]
    sentences = [line for pair in zip(lost, left, strict=True) for line in pair]
    assert (paper.notices, paper.details) == (sentences[:10], sentences[10:])
    now[0] += 59
    reporter.sum_up()
    assert len(paper.notices) == 10
    now[0] += 1
    reporter.sum_up()
    sum_up = "this has happened 3 times more, the last time: host h7 was lost: h7 is not known."
    assert paper.notices[10:] == [sum_up]
    now[0] += 60
    tell(reporter, state, Lost("a", "a is not known"))
    assert paper.notices[11] == "host a was lost: a is not known."


def test_what_was_counted_is_summed_up_when_the_outcome_is_decided(paper: Paper, reporter: JobReporter) -> None:
    for number in range(7):
        reporter.log(lose_host("gone", f"h{number}"), None)
    reporter.decide()
    assert paper.notices[5:] == ["this has happened 2 times more, the last time: host h6 was lost: gone."]


def test_hosts_that_the_reset_limit_leaves_as_they_are_are_reported_once(paper: Paper, reporter: JobReporter) -> None:
    story = ["hosts a:1 b:1 c:1", "join all", "declare all", "exit c:0 -9", "join a:0 after=1 continue"]
    story += ["join b:0 after=1 continue", "hosts a:1 b:1", "tick 1", "hosts a:1 d:1"]
    run_story(reporter, "min=1 max=3 failures=any reset=1", *story)
    limit = "the job has been reset once, and --reset-limit allows no more:"
    assert paper.notices == [
        "rank 2 (c:0) was lost: killed by SIGKILL (signal 9).",
        "a new worker is started in slot c:0.",
        "the job continues with 2 workers.",
        f"{limit} no worker is started on c.",
        f"{limit} the workers on b stay until they end, and no worker is started on d.",
    ]


FIRST = blame_worker(ONE, 0, 3)
STATE_LOST = lose_state(f"{FIRST.reason}; nobody is left", FIRST)
HOST_LOST = blame_host("b", "its agent ended")
LOST_FIRST = "Lost before: rank 1 (b:0) was lost: killed by SIGKILL (signal 9)."
MAY_GO_ON = "Exit code 75: the job may continue when you start it again."
TOO_FEW = Outcome(75, Cause.TOO_FEW_WORKERS, "only 1 of at least 2 workers were there")


@pytest.mark.parametrize(
    ("losses", "outcome", "notes"),
    [
        ([lose_host("gone.")], TOO_FEW, ("Lost before: host b was lost: gone.", MAY_GO_ON)),
        ([GIVEN_UP], TOO_FEW, (f"Lost before: {GIVEN_UP.sentence}.", MAY_GO_ON)),
        ([lose(TWO, 1, -9), lose(ONE, 0, 3)], STATE_LOST, (LOST_FIRST,)),
        ([], fail_again("the shapes differ; the same has happened 3 times in a row", None), ()),
        ([lose(TWO, 1, -9), lose_host("its agent ended")], HOST_LOST, (LOST_FIRST, MAY_GO_ON)),
    ],
    ids=["too few", "given up", "state lost", "fails again", "host lost"],
)
def test_the_page_of_a_job_that_cannot_go_on_names_what_was_lost_once(
    paper: Paper, reporter: JobReporter, losses: list[Log], outcome: Outcome, notes: tuple[str]
) -> None:
    for loss in losses:
        reporter.log(loss, outcome)
    reporter.explain(outcome, 2, STATE)
    last_lines = () if outcome.worker is None else (f"last words of {outcome.worker}",)
    assert paper.pages == [Page(reason=outcome.reason, last_lines=last_lines, notes=notes)]
    assert f"{outcome.reason}." not in paper.notices


def test_the_page_of_a_worker_says_how_long_the_job_ran_until_it_was_decided(paper: Paper) -> None:
    times = iter([1.0, 10.0, 12.5, 12.5])
    reporter = make_reporter(paper, clock=times.__next__)
    reporter.start()
    reporter.decide()
    reporter.explain(blame_worker(TWO, 1, 3), 2, STATE)
    (page,) = paper.pages
    assert (page.rank, page.host, page.returncode, page.seconds) == (1, "b", 3, 2.5)
    assert page.last_lines == ("last words of b:0",)


def test_the_page_of_a_worker_says_which_others_ended_well(paper: Paper, reporter: JobReporter) -> None:
    state = run_story(reporter, "min=1 max=2 failures=any", "hosts a:1 b:1", "join all", "exit a:0 0", "exit b:0 -9")
    assert state.outcome is not None
    reporter.explain(state.outcome, 2, state)
    note = "Rank 0 ended with 0, but the job could not continue without rank 1, and ends with its failure."
    assert paper.pages[0].notes == (note,)


@pytest.mark.parametrize(("story", "ranks"), [(("join all",), (0,)), ((), (0, 1))], ids=["a newcomer", "all"])
def test_the_page_names_the_ended_members(
    paper: Paper, reporter: JobReporter, story: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    begun = "policy min=1 max=2 failures=any", "hosts a:1" if story else "hosts a:1 b:1", *story, "hosts a:1 b:1"
    state = play(*begun, *("declare a:0" for _ in story))
    for record in state.alive():
        reporter.note_end_ordered(record.worker, state)
    reporter.explain(blame_worker(TWO, 1, 3), 2, state)
    assert paper.pages[0].ended_ranks == ranks


NOT_FOUND = "the command 'train' was not found"
NOT_STARTED = blame_worker(TWO, 1, 127, NOT_FOUND, cannot_start=True)


@pytest.mark.parametrize(
    ("outcome", "hosts", "notices"),
    [
        (blame_host("b", "gone"), 2, ["host b was lost: gone."]),
        (NOT_STARTED, 2, [f"on the host 'b', {NOT_FOUND}."]),
        (NOT_STARTED, 1, [f"{NOT_FOUND}."]),
        (succeed(), 2, []),
    ],
    ids=["host lost", "not started on one of several", "not started", "ended well"],
)
def test_of_a_static_job_only_the_end_is_told(paper: Paper, outcome: Outcome, hosts: int, notices: list[str]) -> None:
    reporter = make_reporter(paper, STATIC)
    state = run_story(reporter, "size=2", "hosts a:1 b:1", "join all", "join all after=1", "exit b:0 3")
    reporter.explain(outcome, hosts, state)
    assert (paper.notices, paper.pages) == (notices, [])
