"""How much memory is free, by the machine and by control groups of both versions."""

from pathlib import Path

import pytest

from worker_runtime.snapshots.free_memory import describe, find_shortage

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB available."""
    write(tmp_path / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {8 << 20} kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_memory_of_the_machine_counts(root: Path) -> None:
    assert find_shortage(8 * GIB, root) is None
    assert find_shortage(9 * GIB, root) == "the memory of this host leaves 8192 MiB"


@pytest.mark.parametrize(
    ("line", "folder", "limit", "use"),
    [
        ("0::/job/worker\n", "job", "memory.max", "memory.current"),
        ("3:cpu:/x\n4:memory:/job\n", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_control_group_above_the_process_counts_without_its_cached_files(
    root: Path, line: str, folder: str, limit: str, use: str
) -> None:
    write(root / "proc/self/cgroup", line)
    group = root / "sys/fs/cgroup" / folder
    write(group / limit, f"{4 * GIB}\n")
    write(group / use, f"{3 * GIB}\n")
    write(group / "memory.stat", f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n")
    assert find_shortage(2 * GIB, root) is None
    assert find_shortage(3 * GIB, root) == f"{limit} of the control group leaves 2048 MiB"
    write(group / limit, "max\n")
    assert find_shortage(3 * GIB, root) is None


def test_a_machine_that_reports_nothing_has_no_shortage(tmp_path: Path) -> None:
    assert find_shortage(1 << 60, tmp_path) is None


def test_sizes_are_for_people() -> None:
    assert [describe(size) for size in (12, 20_000, 300 << 20, 40 << 30)] == [
        "12 bytes",
        "19 KiB",
        "300 MiB",
        "40 GiB",
    ]
