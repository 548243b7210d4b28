"""Threads that are set afterwards are those that the environment would have set before."""

import json
import os
import subprocess
import sys

import pytest

COUNTS = """
import json, sys
from worker_runtime import thread_counts
{imports}
{then}
counts = [torch.get_num_threads() if "torch" in sys.modules else None]
from threadpoolctl import threadpool_info
print(json.dumps(counts + sorted([pool["internal_api"], pool["num_threads"]] for pool in threadpool_info())))
"""


def count(imports: str, environment: dict[str, str], then: str = "") -> list[object]:
    """The threads of torch (None: not imported), OpenMP and BLAS in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    run = subprocess.run(
        [sys.executable, "-c", COUNTS.format(imports=imports, then=then)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[object] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("wanted", [None, 2, 64])
def test_as_many_are_used_as_if_it_had_been_said_before_the_imports(wanted: int | None) -> None:
    imports = "import numpy, scipy.linalg, torch"
    before = count(imports, {} if wanted is None else {"OMP_NUM_THREADS": str(wanted)})
    assert count(imports, {"OMP_NUM_THREADS": "1"}, f"thread_counts.set_all({wanted})") == before
    assert len(before) == 4


def test_one_thread_is_left_as_it_is() -> None:
    assert count("import numpy", {"OMP_NUM_THREADS": "1"}, "thread_counts.set_all(1)") == [None, ["openblas", 1]]


def test_what_was_not_imported_is_left_alone() -> None:
    assert count("", {"OMP_NUM_THREADS": "1"}, "thread_counts.set_all(3)") == [None]
