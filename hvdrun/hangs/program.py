"""The command line of `hvdrun stacks`: its words, its page, and its exit code."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from textwrap import shorten

from hvdrun.errors import UsageError
from hvdrun.hangs.errors import JobNotFoundError, JobNotRespondingError
from hvdrun.hangs.places import JobPlaces, render
from hvdrun.hangs.questions import SilentJobError, ask, list_jobs
from hvdrun.options.programs import STACKS

INCOMPLETE = 3  # the exit code if a rank has not answered
_LIMIT_SECONDS = 2.0
_NATIVE_LIMIT_SECONDS = 35.0
_COMMAND_WIDTH = 40


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


def _choose(name: str) -> str:
    """The job that is meant.

    name: the beginning of its name; "" for the only one.

    Raises:
        JobNotFoundError, UsageError: there is none, or there are several.
    """
    jobs = [job for job in list_jobs() if job.startswith(name)]
    if not jobs:
        raise JobNotFoundError(name)
    if len(jobs) > 1:
        listed = ", ".join(map(_describe, jobs))
        raise UsageError(f"{len(jobs)} jobs run on this machine: {listed}: name one, as in hvdrun stacks {jobs[0]}.")
    return jobs[0]


def _describe(job: str) -> str:
    """The name of a job, with the first words of its command where it answers."""
    document = None
    with suppress(SilentJobError):  # then its name has to do
        document = ask(job, _LIMIT_SECONDS)
    if document is None:
        return job
    return f"{job} ({shorten(JobPlaces.decode(document).command, _COMMAND_WIDTH, placeholder=' ...')})"


def _ask(job: str, *, is_native: bool) -> str:
    limit_seconds = _NATIVE_LIMIT_SECONDS if is_native else _LIMIT_SECONDS
    try:
        document = ask(job, limit_seconds, is_native=is_native)
    except SilentJobError as error:
        raise JobNotRespondingError(job, limit_seconds, error.pid) from None
    if document is None:
        raise JobNotFoundError(job)
    return document
