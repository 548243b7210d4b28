"""What hvdrun prints of an elastic job: each change in one line, and in the end why the job failed."""

import shlex
import time
from collections.abc import Callable
from typing import cast

import pytest

from hvdrun.console import Console, Page
from hvdrun.console.job_reporter import JobReporter
from rendezvous.core import membership
from rendezvous.core.messages import (
    Dismiss,
    Effect,
    Event,
    Explanation,
    Finish,
    Launch,
    Level,
    Log,
    Lost,
    Notify,
    Terminate,
    describe,
)
from rendezvous.core.model import Assignment, Round, Slot, Worker
from rendezvous.core.outcome import Cause, Outcome, blame_worker, fail_again, succeed
from rendezvous.core.state import State
from tests.rendezvous.core.commands import parse_event, parse_policy
from tests.rendezvous.core.transcript import expand, find_size, play

WORKER = Worker(Slot("b", 0), 1)


class Paper:
    """A console that keeps what is said."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.details: list[str] = []
        self.pages: list[Page] = []
        self.levels: list[Level] = []
        self.hosts: list[str | None] = []
        self.page = self.pages.append
        self.output = self

    def notice(self, text: str, level: Level = Level.INFO, host: str | None = None) -> None:
        """See `Console`."""
        self.notices.append(text)
        self.levels.append(level)
        self.hosts.append(host)

    def verbose(self, text: str, host: str | None = None) -> None:
        """See `Console`."""
        self.details.append(text)
        self.hosts.append(host)

    def tail(self, worker: Worker) -> tuple[str, ...]:
        """See `OutputPrinter`."""
        return (f"last words of {worker}",)


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def reporter(paper: Paper) -> JobReporter:
    return make_reporter(paper)


def make_reporter(paper: Paper, clock: Callable[[], float] = time.monotonic) -> JobReporter:
    return JobReporter(cast("Console", paper), clock)


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
def test_the_reason_for_a_new_generation_is_reported_once_where_no_worker_was_lost(
    paper: Paper, reporter: JobReporter, story: list[str], notices: list[str]
) -> None:
    run_story(reporter, "min=1 max=2 failures=any", "tick 0", "hosts a:2", "join a:0", "join a:1", *story)
    assert paper.notices == notices


def tell(reporter: JobReporter, state: State, event: Event) -> State:
    """The state after this event, of whose effects the reporter prints what a person reads."""
    state, effects = membership.step(state, event)
    for effect in effects:
        if (log := describe(effect)) is not None and log.level is not Level.DEBUG:
            reporter.log(log)
    return state


def run_story(reporter: JobReporter, policy: str, *story: str) -> State:
    """The state after these commands of a transcript."""
    state = membership.begin(parse_policy(policy.split()))
    for command in story:
        for words in expand(shlex.split(command), state):
            state = tell(reporter, state, parse_event(words, find_size(state)))
    return state


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
    assert [notice for notice in paper.notices if not notice.startswith("rank")] == [
        "slot a:0 is closed for 600 s (--slot-cooldown): its command cannot be started.",
        f"host a is closed for {cooldown}: 2 of its 3 slots are closed, a:1 because its command cannot be started.",
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


def test_counted_events_are_summed_up_when_the_outcome_is_decided(paper: Paper, reporter: JobReporter) -> None:
    for number in range(7):
        host = f"h{number}"
        reporter.log(Log(f"host {host} was lost: gone", Level.WARNING, host))
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


@pytest.mark.parametrize(
    ("effect", "details"),
    [
        (Launch(WORKER, Assignment(0, 1, 0, 1, 0, 1), "placed"), ["launch b:0: placed"]),
        (Terminate(WORKER, 5.0, "it is late"), ["terminate b:0: it is late"]),
        (Dismiss("b", 1, "host b is no longer listed"), ["the agent on b is released: host b is no longer listed"]),
        (Dismiss("b", 1, "host b was lost: gone", is_lost=True), []),
        (Finish(succeed()), []),
    ],
    ids=["launch", "terminate", "dismiss", "dismiss as lost", "finish"],
)
def test_the_orders_of_the_core_are_details(
    paper: Paper, reporter: JobReporter, effect: Effect, details: list[str]
) -> None:
    if (log := describe(effect)) is not None:
        reporter.log(log)
    assert (paper.notices, paper.details) == ([], details)


def test_a_stop_notice_is_printed(paper: Paper, reporter: JobReporter) -> None:
    log = describe(Notify("b", "host b got a stop notice"))
    assert log is not None
    reporter.log(log)
    assert paper.notices == ["host b got a stop notice."]


def test_sentences_of_the_core_keep_their_level_and_host(paper: Paper, reporter: JobReporter) -> None:
    reporter.log(Log("host b was lost", Level.WARNING, "b"))
    reporter.log(Log("launch b:0", Level.DEBUG))
    reporter.explain(Finish(Outcome(124, Cause.START_TIMED_OUT, "late.", host="c"), Explanation.SENTENCE, "it is late"))
    assert paper.levels == [Level.WARNING, Level.ERROR]
    assert paper.hosts == ["b", None, "c"]


def test_the_page_of_a_recovery_has_its_reason_and_notes(paper: Paper, reporter: JobReporter) -> None:
    outcome = fail_again("the shapes differ", blame_worker(WORKER, 1, 3))
    reporter.explain(Finish(outcome, Explanation.RECOVERY_PAGE, outcome.reason, (0, 2), ("Lost before: b.",)))
    last_lines = ("last words of b:0",)
    page = Page("the shapes differ", last_lines=last_lines, ended_ranks=(0, 2), notes=("Lost before: b.",))
    assert (paper.pages, paper.notices) == ([page], [])


def test_the_page_of_a_worker_says_how_long_the_job_ran_until_it_was_decided(paper: Paper) -> None:
    times = iter([10.0, 12.5, 12.5])
    reporter = make_reporter(paper, times.__next__)
    reporter.decide()
    reporter.explain(Finish(blame_worker(WORKER, 1, 3), Explanation.WORKER_PAGE, stopped=(0,), notes=("Rank 2.",)))
    (page,) = paper.pages
    assert (page.rank, page.worker, page.returncode, page.seconds) == (1, WORKER, 3, 2.5)
    assert (page.last_lines, page.ended_ranks, page.notes) == (("last words of b:0",), (0,), ("Rank 2.",))


@pytest.mark.parametrize(
    ("finish", "notices"),
    [
        (Finish(succeed()), []),
        (Finish(Outcome(124, Cause.START_TIMED_OUT, "late."), Explanation.SENTENCE, "it is late"), ["it is late."]),
    ],
    ids=["nothing", "a sentence"],
)
def test_other_ends_have_no_page(paper: Paper, reporter: JobReporter, finish: Finish, notices: list[str]) -> None:
    reporter.explain(finish)
    assert (paper.notices, paper.pages) == (notices, [])


def test_a_restart_ends_with_how_long_it_took_until_all_workers_ran() -> None:
    now, paper = [0.0], Paper()
    reporter = JobReporter(cast("Console", paper), lambda: now[0])
    workers = [Worker(Slot("a", index), 2) for index in range(2)]
    reporter.note_stop()
    now[0] = 0.3
    reporter.note_stop()  # of another worker of the same round
    for rank, worker in enumerate(workers):
        reporter.note_launch(Launch(worker, Assignment(rank, 2, rank, 2, 0, 1), "again", round=Round(1, 0, 1)))
    reporter.note_started(workers[0])
    reporter.note_started(workers[0])
    assert paper.notices == []
    now[0] = 0.5
    reporter.note_started(workers[1])
    assert paper.notices == ["all 2 workers run again after 0.5 s."]


def test_an_order_that_crosses_a_report_is_printed_once_and_one_that_was_lost_again() -> None:
    now, paper = [0.0], Paper()
    reporter = JobReporter(cast("Console", paper), lambda: now[0])
    numbers = Assignment(0, 1, 0, 1, 0, 1)
    reporter.tell(Terminate(WORKER, 2.0, "it is stopped"))
    reporter.tell(Launch(WORKER, numbers, "placed"))
    now[0] = 0.1
    reporter.tell(Terminate(WORKER, 1.9, "it is stopped"))
    reporter.tell(Launch(WORKER, numbers, "the agent does not have it"))
    reporter.tell(Terminate(WORKER, 0.0, "the job ends"))
    now[0] = 2.0
    reporter.tell(Launch(WORKER, numbers, "the agent does not have it"))
    assert paper.details == [
        f"terminate {WORKER}: it is stopped", f"launch {WORKER}: placed", f"terminate {WORKER}: the job ends",
        f"launch {WORKER}: the agent does not have it",
    ]  # fmt: skip


def test_the_page_of_another_server_has_the_time_since_the_beginning_of_the_job(paper: Paper) -> None:
    reporter = JobReporter(cast("Console", paper), lambda: 100.0, ago_seconds=60.0)
    reporter.explain(Finish(blame_worker(WORKER, 0, 3), Explanation.WORKER_PAGE))
    assert [page.seconds for page in paper.pages] == [60.0]
