"""The command line of `hvdrun stacks`: its words, its page, and its exit code."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from hvdrun.hangs.places import JobPlaces, render
from hvdrun.jobs.errors import JobElsewhereError, JobNotFoundError, JobNotRespondingError, JobNotRunningError
from hvdrun.jobs.known import JobState, choose, find_jobs
from hvdrun.jobs.questions import Question, SilentJobError, ask
from hvdrun.options.programs import STACKS

INCOMPLETE = 3  # the exit code if a rank has not answered
_LIMIT_SECONDS = 2.0
_NATIVE_LIMIT_SECONDS = 35.0


def run(words: Sequence[str]) -> tuple[str, int]:
    """The page that these words ask for, and the exit code.

    Raises:
        HvdrunError: the command line is wrong, or no such job runs here.
    """
    given = STACKS.parse(words)
    if "help" in given:
        from hvdrun.options.pages import render_program_help  # noqa: PLC0415 - few ask for it

        return render_program_help(STACKS), 0
    found = JobPlaces.decode(_ask(_choose(str(given.get("job", ""))), is_native="native" in given))
    page = render(found)
    if "json" in given:
        page = json.dumps({"version": 1, **asdict(found)}, indent=1)
    if found.is_complete:
        return page, 0
    return page, INCOMPLETE


def _choose(asked: str) -> str:
    """The name of the job that is meant, which runs here."""
    jobs = find_jobs()
    try:
        return choose(asked, [job for job in jobs if job.state is JobState.RUNNING], STACKS.name).name
    except JobNotFoundError:
        if not asked:
            raise
    job = choose(asked, jobs, STACKS.name)
    if job.state is JobState.ELSEWHERE:
        raise JobElsewhereError(job.name, job.record.machine, f"{STACKS.name} {job.name}")
    lost = f"its launcher was killed; hvdrun resume {job.name} starts another one"
    raise JobNotRunningError(job.name, lost if job.state is JobState.LOST else "it has ended")


def _ask(job: str, *, is_native: bool) -> str:
    question, limit_seconds = Question.STACKS, _LIMIT_SECONDS
    if is_native:
        question, limit_seconds = Question.NATIVE_STACKS, _NATIVE_LIMIT_SECONDS
    try:
        document = ask(job, question, limit_seconds)
    except SilentJobError as error:
        raise JobNotRespondingError(job, limit_seconds, error.pid) from None
    if document is None:
        raise JobNotRunningError(job, "it has just ended, or its next launcher is starting; ask again in a moment")
    return document
