"""The tiers of tests: how much of the world a test needs, and how long it may take.

Each tier is a marker: `pytest -m pure`, `pytest -m 'pure or inprocess'`. A test's file decides its tier; a marker on
the file or on the test takes precedence. A nightly test has the marker `nightly` alone.
"""

from enum import StrEnum

import pytest


class Tier(StrEnum):
    """How much of the world a test needs."""

    PURE = "pure"  # values in, values out: no clock, network, thread, process or framework
    IN_PROCESS = "inprocess"  # real servers, files, threads, groups and processes of the test's own; no hvdrun job
    SYSTEM = "system"  # real hvdrun jobs on this machine
    HOSTS = "hosts"  # real hvdrun jobs on several hosts, in a lab
    HOUSE = "house"  # the repository itself


# The folders and files of each tier, from the repository's root. Other tests are in process.
FILES = {
    Tier.PURE: (
        "tests/rendezvous/core/",
        "tests/rendezvous/journal/test_codec.py",
        "tests/rendezvous/journal/test_difference.py",
        "tests/rendezvous/test_bootstrap.py",
        "tests/rendezvous/wire/",
        "tests/worker_runtime/coordination/ordering/",
        "tests/worker_runtime/plans/",
        "tests/worker_runtime/test_errors.py",
        "tests/worker_runtime/coordination/test_wire.py",
        "tests/hvdrun/accounts/test_history.py",
        "tests/hvdrun/accounts/test_page.py",
        "tests/hvdrun/accounts/test_report.py",
        "tests/hvdrun/processes/test_silence.py",
        "tests/hvdrun/spec/test_slurm_lists.py",
        "tests/hvdrun/transport/ssh/test_ssh_errors.py",
        "tests/hvdrun/console/test_lines.py",
        "tests/hvdrun/console/test_marks.py",
        "tests/hvdrun/console/test_page.py",
        "tests/hvdrun/network/test_choice.py",
        "tests/hvdrun/network/test_errors.py",
        "tests/hvdrun/options/test_table.py",
        "tests/hvdrun/options/test_kinds.py",
        "tests/hvdrun/spec/test_environment.py",
        "tests/hvdrun/test_errors.py",
        "tests/hvdrun/options/test_flags.py",
        "tests/hvdrun/spec/test_hosts.py",
        "tests/hvdrun/spec/test_jobspec.py",
        "tests/hvdrun/spec/test_mapping.py",
        "tests/hvdrun/spec/test_redaction.py",
        "tests/hvdrun/console/test_job_reporter.py",
        "tests/hvdrun/console/test_rank_table.py",
    ),
    Tier.HOUSE: ("tests/house/", "tests/protos/", "tests/deploy/"),
    Tier.HOSTS: ("tests/lab/", "tests/system/hosts/"),
    Tier.SYSTEM: ("tests/system/",),
}

# Generous, since a busy machine is no fault: they end what hangs. A test that needs another limit carries its own.
LIMIT_SECONDS = {Tier.PURE: 120, Tier.IN_PROCESS: 120, Tier.SYSTEM: 240, Tier.HOSTS: 240, Tier.HOUSE: 240}


def leads_to_pure(path: str) -> bool:
    """Whether a file's tests are pure, or a folder holds such files; here no marker takes precedence."""
    folder = f"{path}/"
    return any(folder.startswith(pure) or path == pure or pure.startswith(folder) for pure in FILES[Tier.PURE])


def find_tier(item: pytest.Item) -> Tier:
    """The tier of a test."""
    for tier in Tier:
        if item.get_closest_marker(tier) is not None:
            return tier
    name = item.nodeid
    return next((tier for tier, starts in FILES.items() if name.startswith(starts)), Tier.IN_PROCESS)
