"""A worker's end is reported with what it has said, and with what the kernel knew when it was reaped."""

from pathlib import Path

from hvdrun.agent.ends import Ends
from hvdrun.agent.memory_kills import MemoryKills
from rendezvous.core.messages import Exited
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import Blame

WORKER = Worker(Slot("a", 0), 1)
GIB = 1 << 30


def make_ends(root: Path) -> Ends:
    """The ends of a host without memory cgroups, and with 4 GiB."""
    (root / "proc").mkdir()
    (root / "proc" / "meminfo").write_text("MemTotal: 4194304 kB\n", encoding="utf-8")
    return Ends(lambda _: "no such luck", MemoryKills(root))


def test_an_end_has_the_message_the_blame_and_the_evidence_once(tmp_path: Path) -> None:
    ends, blame = make_ends(tmp_path), Blame("rank 1 was cut off", (1,))
    ends.note_blame(WORKER, blame)
    ends.note_blame(WORKER, None)
    ends.note_evidence(WORKER, -9, 4 * GIB)
    ends.record(WORKER, -9)
    (end,) = ends.list()
    assert (end.message, end.blame) == ("no such luck", blame)
    assert end.evidence.startswith("Probably the kernel killed it")
    ends.acknowledge((end,))
    ends.record(WORKER, -9)
    assert ends.list() == (Exited(WORKER, -9, message="no such luck"),)


def test_a_worker_that_its_agent_has_killed_needs_no_evidence(tmp_path: Path) -> None:
    ends = make_ends(tmp_path)
    ends.note_evidence(WORKER, -9, 4 * GIB)
    ends.record(WORKER, -9, "it stood still", was_stopped=True)
    assert [end.evidence for end in ends.list()] == [""]
