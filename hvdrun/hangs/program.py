"""The command line of `hvdrun stacks`: its words, its page, and its exit code."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from hvdrun.hangs.places import JobPlaces, render
from hvdrun.jobs.errors import JobNotFoundError, JobNotRespondingError
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
    running = [job for job in find_jobs() if job.state is JobState.RUNNING]
    found = JobPlaces.decode(
        _ask(choose(str(given.get("job", "")), running, STACKS.name).name, is_native="native" in given)
    )
    page = render(found)
    if "json" in given:
        page = json.dumps({"version": 1, **asdict(found)}, indent=1)
    if found.is_complete:
        return page, 0
    return page, INCOMPLETE


def _ask(job: str, *, is_native: bool) -> str:
    question, limit_seconds = Question.STACKS, _LIMIT_SECONDS
    if is_native:
        question, limit_seconds = Question.NATIVE_STACKS, _NATIVE_LIMIT_SECONDS
    try:
        document = ask(job, question, limit_seconds)
    except SilentJobError as error:
        raise JobNotRespondingError(job, limit_seconds, error.pid) from None
    if document is None:
        raise JobNotFoundError(job)
    return document
