"""On hosts whose addresses no name server knows, torch's warnings of that do not reach the workers' standard error."""

import subprocess
import sys

import pytest

from tests.house.sources import ROOT

NAMELESS = ("unshare", "--net", "--map-root-user", "sh", "-c")
NETWORK = 'ip link set lo up && ip addr add 192.0.2.1/32 dev lo && exec "$0" "$@"'
FORMS = """
from concurrent.futures import ThreadPoolExecutor
from rendezvous.core.model import Endpoint
from tests.worker_runtime.groups.test_group import LIMIT, Announcements, be
from worker_runtime.coordination.group import form
from worker_runtime.groups.torch_log import _find_level

meeting = Announcements(Endpoint("192.0.2.1", 1))
with ThreadPoolExecutor() as threads:
    groups = [threads.submit(form, be(rank), meeting, "192.0.2.1", LIMIT) for rank in range(2)]
    for group in groups:
        group.result().torch_groups.close()
print(_find_level().value)
"""


def test_forming_a_group_prints_no_warning_of_names_and_leaves_the_users_log_alone() -> None:
    if subprocess.run([*NAMELESS, NETWORK, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace can be made here: run as root, with iproute2 and util-linux")
    command = [*NAMELESS, NETWORK, sys.executable, "-c", FORMS]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert (run.stdout, run.stderr) == ("1\n", "")
