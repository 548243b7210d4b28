"""`hvdrun agent` and `hvdrun token`: what they do with their values."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.spec.hosts import is_host_name

Say = Callable[[str], None]


def run_agent(values: Mapping[str, Any], say: Say) -> int:
    """Join a job and serve it; the exit code.

    Raises:
        HvdrunError: it cannot be joined.
    """
    if not is_host_name(values["name"]):
        raise UsageError(f"a host cannot be called {values['name']!r}: give another name, as in --name node1.")
    from hvdrun.joining.applicant import Applicant, Application  # noqa: PLC0415 - the same
    from hvdrun.processes.accelerators import count_accelerators  # noqa: PLC0415 - a wrong command line answers at once

    slots = values["slots"] or max(1, count_accelerators())
    token_file = Path.cwd() / values["token_file"]
    application = Application(values["place"], token_file, values["name"], slots, values["join_timeout"])

    async def run() -> int:
        return await Applicant(application, say).run()

    return asyncio.run(run())


def make_token(values: Mapping[str, Any]) -> str:
    """Make the files; a sentence about them.

    Raises:
        HvdrunError: they cannot be made.
    """
    from hvdrun.joining.keys import make_files, name_key  # noqa: PLC0415 - brings cryptography

    path = Path.cwd() / values["file"]
    keys = make_files(path, values["lifetime"])
    return (
        f"{values['file']} is for hvdrun and all agents, {name_key(path).name} for hvdrun alone; agents may join until "
        f"{keys.token.describe_expiry()}."
    )
