"""What a person is told of an elastic job: each change in one line, and in the end why it did not go on.

Long because each thing that can happen to a job has its line, and a test of it.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hvdrun.console import Console, Page
from hvdrun.elasticity import Elasticity
from hvdrun.jobspec import JobSpec
from hvdrun.narrator import Narrator, describe_changes
from hvdrun.rank_book import RankBook
from rendezvous.core import membership
from rendezvous.core.effects import Dismiss, Launch, Terminate
from rendezvous.core.events import Exited, HostsChanged, Lost
from rendezvous.core.model import Assignment, Generation, Host, Slot, Worker
from rendezvous.core.outcome import Cause, Outcome, blame_host, blame_worker, fail_again, lose_state, succeed
from rendezvous.core.state import Standing, State
from tests.rendezvous.core.commands import parse_event, parse_policy
from tests.rendezvous.core.transcript import play

ONE, TWO = Worker(Slot("a", 0), 1), Worker(Slot("b", 0), 1)
ELASTIC = JobSpec(("true",), 2, (Host("a", 1), Host("b", 1)), Path("/"), Elasticity(1))


class Paper:
    """A console that keeps what is said."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.details: list[str] = []
        self.pages: list[Page] = []
        self.output = self

    def notice(self, text: str) -> None:
        """See `Console`."""
        self.notices.append(text)

    def verbose(self, text: str) -> None:
        """See `Console`."""
        self.details.append(text)

    def page(self, page: Page) -> None:
        """See `Console`."""
        self.pages.append(page)

    def tail(self, worker: Worker) -> tuple[str, ...]:
        """See `OutputPrinter`."""
        return (f"last words of {worker}",)


@pytest.fixture
def paper() -> Paper:
    return Paper()


def make_narrator(paper: Paper, spec: JobSpec = ELASTIC) -> Narrator:
    ranks = RankBook(lambda: Generation(1, (ONE, TWO)))
    return Narrator(spec, cast("Console", paper), ranks)


def make_state(spec: JobSpec = ELASTIC, number: int = 1) -> State:
    """Both workers are members of a generation of this number."""
    state, _ = membership.step(membership.begin(spec.policy()), HostsChanged(spec.hosts))
    return replace(state, generation=Generation(number, (ONE, TWO)))


def test_losses_and_how_the_job_goes_on_are_a_line_each(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_state(make_state())
    narrator.note_event(Exited(TWO, -9), make_state())
    narrator.note_event(Lost("b", "its ssh connection was lost."), make_state())
    for _ in range(2):
        narrator.note_state(replace(make_state(), generation=Generation(2, (ONE, Worker(TWO.slot, 2)))))
    assert paper.notices == [
        "rank 1 (b:0) was lost: killed by SIGKILL (signal 9).",
        "the host b was lost: its ssh connection was lost.",
        "the job goes on with 2 workers.",
    ]


TOGETHER = ("hosts a:2", "join a:0", "join a:1")
SILENT = "rank 0 does not reach 10.0.0.3 any more, which has acknowledged nothing for 3 s"
GOES_ON = "the job goes on with 2 workers."


@pytest.mark.parametrize(
    ("story", "told"),
    [
        (("join a:0 after=1", "join a:1 after=1"), []),
        (("join a:0 after=1 resize state", "join a:1 after=1 resize state"), []),
        (
            ("join a:1 after=1 continue", f'join a:0 after=1 continue "trouble={SILENT}"'),
            [f"{SILENT}.", GOES_ON],
        ),
        (
            (f'join a:0 after=1 form "trouble={SILENT}."', 'join a:1 after=1 form "trouble=so was rank 1"'),
            [f"{SILENT}.", GOES_ON],
        ),
        (
            ('join a:1 after=1 restore state "trouble=the shapes\n differ"', "join a:0 after=1 continue state"),
            ["rank 1 has returned to its last commit: the shapes differ.", GOES_ON],
        ),
        (
            ('join a:1 after=1 continue "trouble=rank 0 has closed the connection"', "exit a:0 -9"),
            ["rank 0 (a:0) was lost: killed by SIGKILL (signal 9).", "the job goes on with 1 worker."],
        ),
    ],
    ids=["begin anew", "begin again", "cut off", "not connected", "restored", "lost as well"],
)
def test_why_a_generation_was_formed_anew_is_told_where_nobody_was_lost(
    paper: Paper, story: tuple[str, ...], told: list[str]
) -> None:
    narrate(make_narrator(paper), *TOGETHER, *story)
    assert paper.notices == told


def test_a_reason_is_told_of_its_own_generation_only(paper: Paper) -> None:
    second = ('join a:0 after=1 continue "trouble=the sequencer has ended"', "join a:1 after=1 continue")
    third = ("join a:0 after=2 continue", "join a:1 after=2 continue")
    narrate(make_narrator(paper), *TOGETHER, *second, *third)
    assert paper.notices == ["the sequencer has ended.", GOES_ON, GOES_ON]


def narrate(narrator: Narrator, *commands: str) -> None:
    """What the server does with a job's narrator."""
    state = membership.begin(parse_policy(["min=1", "max=2", "failures=any"]))
    for command in ("tick 0", *commands):
        event = parse_event(shlex.split(command))
        narrator.note_event(event, state)
        state, _ = membership.step(state, event)
        narrator.note_state(state)


def test_an_end_with_a_reason_of_its_own_is_told_with_that(paper: Paper) -> None:
    narrator = make_narrator(paper)
    for worker in (ONE, TWO):
        narrator.note_event(Exited(worker, -9, "it was stopped"), make_state())
    assert paper.notices == ["rank 0 (a:0) was lost: it was stopped.", "rank 1 (b:0) was lost: it was stopped."]


def test_what_several_workers_cannot_be_started_for_is_told_once(paper: Paper) -> None:
    narrator = make_narrator(paper)
    for worker in (ONE, TWO, TWO):
        narrator.note_event(Exited(worker, 127, "the command 'train' was not found", cannot_start=True), make_state())
    assert paper.notices == ["rank 0 (a:0) was lost: the command 'train' was not found."]


def test_whose_end_is_no_loss_is_not_told(paper: Paper) -> None:
    narrator = make_narrator(paper)
    member = replace(make_state().workers[TWO.slot], standing=Standing.MEMBER)
    narrator.note_event(Exited(TWO, 0), make_state().with_records([member]))
    narrator.note_event(Exited(ONE, -15), replace(make_state(), outcome=succeed()))
    narrator.note_event(Exited(Worker(TWO.slot, 2), 1), make_state())
    leaving = replace(make_state().workers[TWO.slot], standing=Standing.LEAVING)
    narrator.note_event(Exited(TWO, -15), make_state().with_records([leaving]))
    narrator.note_event(Lost("c", "nobody knows it"), make_state())
    assert paper.notices == []


def test_who_is_given_up_is_told_as_lost(paper: Paper) -> None:
    order = Terminate(TWO, 0.0, "rank 1 (b:0) did not join the others again within 60 s", is_loss=True)
    narrator = make_narrator(paper)
    narrator.note_given_up(order)
    make_narrator(paper, replace(ELASTIC, elasticity=None)).note_given_up(order)
    assert paper.notices == ["rank 1 (b:0) did not join the others again within 60 s."]
    narrator.explain(Outcome(75, Cause.TOO_FEW_WORKERS, "only 1 of at least 2 workers were there"), 2)
    assert paper.pages[0].notes[0] == "Lost before: rank 1 (b:0) did not join the others again within 60 s."


def test_a_newcomer_that_ends_well_before_it_has_joined_is_told_once(paper: Paper) -> None:
    narrator, state = make_narrator(paper), make_state()
    narrator.note_event(Exited(TWO, 0), replace(state, generation=None))
    narrator.note_event(Exited(TWO, 0), state)
    narrator.note_event(Exited(TWO, 0), end(state, TWO))
    (notice,) = paper.notices
    assert notice.startswith("the worker b:0, which was started beside the others, ended well before it had joined")


def end(state: State, worker: Worker) -> State:
    return state.with_records([replace(state.workers[worker.slot], standing=Standing.ENDED)])


def test_of_a_static_job_nothing_is_told_but_its_end(paper: Paper) -> None:
    static = replace(ELASTIC, elasticity=None)
    narrator = make_narrator(paper, static)
    narrator.note_event(Exited(TWO, 3), make_state(static))
    for number in (1, 2):
        narrator.note_state(make_state(static, number))
    assert paper.notices == []


def test_a_worker_that_is_started_again_is_told(paper: Paper) -> None:
    narrator = make_narrator(paper)
    for incarnation in (1, 2, 2, 3):  # an order may be repeated
        worker = Worker(TWO.slot, incarnation)
        narrator.note_launch(Launch(worker, Assignment(1, 2, 0, 1, 1, 2), "placed"))
    assert paper.notices == 2 * ["the worker in the slot b:0 is started again."]
    assert len(paper.details) == 4


def test_a_lost_host_is_told_once_and_one_that_is_not_named_any_more_was_told_already(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_event(Lost("b", "gone"), make_state())
    narrator.note_dismissal(Dismiss("b", "it was lost"))
    narrator.note_dismissal(Dismiss("a", "host a was lost: its agent was silent for 5 s (--lease)"))
    narrator.note_dismissal(Dismiss("former", "it is no longer listed"))
    assert paper.notices == []
    narrator.note_state(make_state())
    assert paper.notices == ["the host b was lost: gone.", "host a was lost: its agent was silent for 5 s (--lease)."]


def test_hosts_that_come_and_go_are_told() -> None:
    before = (Host("a", 2), Host("b", 1), Host("c", 1))
    now = (Host("c", 4), Host("d", 1), Host("a", 2))
    assert list(describe_changes(before, now)) == [
        "the script names new hosts: d (1 slot)",
        "the script does not name these hosts any more: b",
        "the script names other numbers of slots: c (4 slots, before 1)",
    ]
    assert list(describe_changes(before, tuple(reversed(before)))) == []


def test_a_slot_or_a_host_that_is_left_alone_is_told_once_each_time(paper: Paper) -> None:
    narrator, begun = make_narrator(paper), ["policy min=1 max=4 failures=any", "tick 1", "hosts a:3 b:1"]
    for command in ('exit a:0 127 "not found"', "tick 2", 'exit a:1 127 "not found"', "lost b gone", "tick 3"):
        if command.startswith("lost"):
            narrator.note_event(Lost("b", "gone"), play(*begun))
        begun.append(command)
        narrator.note_state(play(*begun))
    cooldown = "10 s (--blacklist-cooldown-range)"
    often = "too often (3 times; a command that cannot be started counts so)"
    assert paper.notices == [
        f"the slot a:0 is left alone for 600 s: its workers have failed {often}.",
        f"the host a is left alone for {cooldown}: workers have failed in half of its slots or more.",
        "the host b was lost: gone.",
        f"the host b is left alone for {cooldown}: it was lost.",
    ]


def test_an_only_worker_that_cannot_be_relieved_is_told(paper: Paper) -> None:
    story = ("policy min=1 max=1 failures=any", "hosts a:1", "join a:0")
    alone = make_narrator(paper, replace(ELASTIC, size=1, elasticity=Elasticity(1, 1, script="./hosts")))
    alone.note_event(HostsChanged((Host("b", 1), Host("a", 1))), play(*story))
    alone.note_event(HostsChanged((Host("b", 1),)), play("policy min=1 max=2 failures=any", *story[1:]))
    assert paper.notices == []
    alone.note_event(HostsChanged((Host("b", 1),)), play(*story))
    assert paper.notices == [
        "the worker on the host a stays there until it ends: with --max-np 1 no other can take its state over."
    ]


def test_a_start_that_must_wait_for_slots_says_so(paper: Paper) -> None:
    narrator = make_narrator(paper, replace(ELASTIC, hosts=(), elasticity=Elasticity(2, script="./hosts")))
    narrator.note_hosts((Host("a", 1),))
    narrator.note_hosts((Host("a", 1), Host("b", 2)))
    assert paper.notices[0].startswith("the hosts offer 1 of the 2 slots that the job starts with")
    assert "600 s (--elastic-timeout)" in paper.notices[0]
    assert paper.notices[1:] == ["the script names new hosts: b (2 slots)."]


def test_exit_code_75_is_explained_with_what_was_lost(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_event(Lost("b", "gone"), make_state())
    narrator.explain(Outcome(75, Cause.TOO_FEW_WORKERS, "only 1 of at least 2 workers were there", TWO), 2)
    (page,) = paper.pages
    assert page.reason == "only 1 of at least 2 workers were there"
    assert page.last_lines == ("last words of b:0",)
    assert page.notes == (
        "Lost before: the host b was lost: gone.",
        "Exit code 75: it may go on when it is started again.",
    )


def test_when_the_state_is_lost_everything_that_was_lost_before_is_told(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_event(Exited(TWO, -9), make_state())
    narrator.note_event(Exited(ONE, 3), make_state())
    first = blame_worker(Exited(ONE, 3), 0)
    narrator.explain(lose_state(f"{first.reason}; nobody is left", first), 2)
    (page,) = paper.pages
    assert page.reason == "rank 0 (a:0) failed with exit code 3; nobody is left"
    assert page.last_lines == ("last words of a:0",)
    assert page.notes == ("Lost before: rank 1 (b:0) was lost: killed by SIGKILL (signal 9).",)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_what_the_page_says_of_a_host_is_said_once(paper: Paper, is_noticed: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    narrator, outcome = make_narrator(paper), blame_host("b", "its agent ended")
    narrator.note_event(Exited(ONE, -9), make_state())
    if is_noticed:
        narrator.note_event(Lost("b", "its agent ended"), make_state())
    else:
        narrator.note_dismissal(Dismiss("b", "host b was lost: its agent ended"))
    narrator.note_state(replace(make_state(), outcome=outcome))
    narrator.explain(outcome, 1)
    (page,) = paper.pages
    assert (paper.notices, page.reason) == (
        ["rank 0 (a:0) was lost: killed by SIGKILL (signal 9)."],
        "host b was lost: its agent ended",
    )
    assert page.notes == (
        "Lost before: rank 0 (a:0) was lost: killed by SIGKILL (signal 9).",
        "Exit code 75: it may go on when it is started again.",
    )


def test_a_lost_host_is_told_before_what_is_done_about_it(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_event(Lost("b", "gone"), make_state())
    narrator.note_launch(Launch(Worker(TWO.slot, 2), Assignment(1, 2, 0, 1, 1, 2), "placed"))
    narrator.note_state(make_state(number=0))
    assert paper.notices == ["the host b was lost: gone.", "the worker in the slot b:0 is started again."]


def test_who_fails_again_and_again_is_not_invited_to_start_again(paper: Paper) -> None:
    make_narrator(paper).explain(fail_again("the shapes differ; the same has happened 3 times in a row", None), 2)
    (page,) = paper.pages
    assert (page.reason, page.notes) == ("the shapes differ; the same has happened 3 times in a row", ())


def test_a_static_job_that_loses_a_host_has_its_one_sentence(paper: Paper) -> None:
    make_narrator(paper, replace(ELASTIC, elasticity=None)).explain(blame_host("b", "gone"), 2)
    assert paper.notices == ["host b was lost: gone."]


def test_a_worker_that_decides_how_the_job_ends_has_its_page(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.start()
    narrator.decide()
    narrator.note_end_ordered(ONE)
    narrator.explain(blame_worker(Exited(TWO, 3), 1), 2)
    (page,) = paper.pages
    assert (page.rank, page.host, page.returncode, page.ended_ranks) == (1, "b", 3, (0,))
    assert page.last_lines == ("last words of b:0",)
    assert page.seconds is not None
    assert page.seconds < 60


def test_it_is_said_that_others_ended_well_when_that_does_not_count(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_state(make_state())
    narrator.note_event(Exited(TWO, -9), make_state())
    narrator.note_event(Exited(ONE, 0), make_state())
    narrator.explain(blame_worker(Exited(TWO, -9), 1), 2)
    told = "Rank 0 ended with 0; but the job had not gone on without this one, and ends with its failure."
    assert paper.pages[0].notes == (told,)


def test_who_had_not_joined_the_others_is_not_among_the_ranks_that_were_ended(paper: Paper) -> None:
    narrator = make_narrator(paper)
    narrator.note_state(make_state())
    narrator.note_end_ordered(ONE)
    narrator.note_end_ordered(Worker(TWO.slot, 2))
    narrator.explain(blame_worker(Exited(TWO, 3), 1), 2)
    assert paper.pages[0].ended_ranks == (0,)


def test_where_a_command_could_not_be_started_is_told_among_several_hosts(paper: Paper) -> None:
    outcome = blame_worker(Exited(TWO, 127, "the command 'x' was not found", cannot_start=True), 1)
    make_narrator(paper).explain(outcome, 2)
    make_narrator(paper).explain(outcome, 1)
    make_narrator(paper).explain(succeed(), 2)
    assert paper.notices == [
        "on the host 'b', the command 'x' was not found.",
        "the command 'x' was not found.",
    ]
