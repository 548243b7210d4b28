"""The forkserver itself: when its workers run, when it ends, and what they share with it and with each other."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hvdrun.agent.prefork import make_command
from rendezvous.bootstrap import SNAPSHOT_FD
from rendezvous.wire.processes import LENGTH, Ready
from tests.worker_runtime.forkserver_process import running, serving
from worker_runtime.startup import forkserver

# As libffi does, of which Python's own copy may be a part of the interpreter.
OPENS_A_LIBRARY = """
import os, sys
with open("/proc/self/maps") as maps:
    sys.library = next(line.split()[-1] for line in maps if " r-xp " in line and "/libc" in line)
sys.kept = os.open(sys.library, os.O_RDONLY)
"""
MAPS_A_FILE_THAT_IT_WRITES = """
import mmap, os
kept = os.memfd_create("code")
os.truncate(kept, 4096)
code = mmap.mmap(kept, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
"""


def test_a_worker_runs_when_the_agent_knows_of_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, sys; print(os.getppid(), os.getsid(0), sys.argv); sys.exit(3)")
    with serving(tmp_path) as server:
        assert server.hear() == Ready("")
        workers = [server.fork(tmp_path, "script.py", word) for word in "ab"]
        for word, worker in zip("ab", workers, strict=True):
            assert worker.end() == (3, f"{os.getpid()} {worker.pid} ['script.py', '{word}']\n", "")


def test_a_worker_that_is_given_up_runs_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "print('never')") as server:
        assert server.fork(tmp_path, "script.py").end(run=False) == (0, "", "")


def test_a_worker_outlives_its_forkserver(tmp_path: Path) -> None:
    with running(tmp_path, "print('alive')") as server:
        worker = server.fork(tmp_path, "script.py")
        server.process.kill()
        assert server.agent.recv(1) == b"", "the waiting worker must not hold the socket"
        assert worker.end() == (0, "alive\n", "")


def test_the_forkserver_ends_with_its_agent(tmp_path: Path) -> None:
    with running(tmp_path, "") as server:
        pass
    assert server.process.returncode == 0


def test_a_program_that_cannot_run_here_is_an_objection(tmp_path: Path) -> None:
    with serving(tmp_path, words=("nowhere.py",)) as server:
        assert server.hear() == Ready("the script cannot be compiled: FileNotFoundError")


def test_a_program_that_has_gone_since_is_executed_after_all(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("pass")
    with serving(tmp_path) as server:
        assert server.hear() == Ready("")
        (tmp_path / "script.py").unlink()
        code, _, text = server.fork(tmp_path, "script.py").end()
    assert code == 2
    assert text.endswith("[Errno 2] No such file or directory\n")
    assert "worker_runtime" not in text


def test_a_module_that_cannot_be_imported_ends_it_with_python_s_own_words(tmp_path: Path) -> None:
    with serving(tmp_path, modules=["nowhere"]) as server:
        assert server.agent.recv(1) == b""
    assert (tmp_path / "err").read_text().endswith("ModuleNotFoundError: No module named 'nowhere'\n")


def test_without_its_entrance_a_forkserver_ends_and_runs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-E", *make_command(("python", "script.py"), 3, ())[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this Python has not run the sitecustomize that the agent has put on its PYTHONPATH\n"


def test_output_of_the_imports_appears_for_every_worker(tmp_path: Path) -> None:
    with running(tmp_path, "print('script')", preload="print('imported')") as server:
        assert [server.fork(tmp_path, "script.py").end() for _ in range(2)] == [(0, "imported\nscript\n", "")] * 2


def test_streams_are_the_objects_that_the_imports_may_have_kept(tmp_path: Path) -> None:
    script = "import sys; print(sys.kept == [sys.stdin, sys.stdout, sys.stderr])"
    with running(tmp_path, script, preload="import sys; sys.kept = [sys.stdin, sys.stdout, sys.stderr]") as server:
        assert server.fork(tmp_path, "script.py").end() == (0, "True\n", "")


@pytest.mark.parametrize(
    ("done", "objection"),
    [
        ("import _thread, time; _thread.start_new_thread(time.sleep, (600,))", "1 more threads"),
        ("kept = open('/dev/zero')", "keeps /dev/zero open"),
    ],
)
def test_state_that_does_not_survive_a_fork_is_an_objection(tmp_path: Path, done: str, objection: str) -> None:
    (tmp_path / "script.py").touch()
    with serving(tmp_path, preload=done) as server:
        assert objection in server.hear().objection


def test_a_library_that_keeps_its_own_file_open_keeps_it_in_each_worker(tmp_path: Path) -> None:
    script = "import os, sys; print(os.readlink(f'/proc/self/fd/{sys.kept}') == sys.library)"
    with serving(tmp_path, preload=OPENS_A_LIBRARY) as server:
        (tmp_path / "script.py").write_text(script)
        assert server.hear() == Ready("")
        assert server.fork(tmp_path, "script.py").end() == (0, "True\n", "")


def test_a_library_that_is_open_for_writing_is_an_objection(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    with serving(tmp_path, preload=MAPS_A_FILE_THAT_IT_WRITES) as server:
        assert "keeps /memfd:code (deleted) open" in server.hear().objection


def test_a_worker_whose_memory_has_the_number_of_a_library_s_file_is_executed(tmp_path: Path) -> None:
    preload = (
        f"import sys\nif '-m' in sys.orig_argv:\n{textwrap.indent(OPENS_A_LIBRARY, '    ')}    os.dup2(sys.kept, 77)"
    )
    script = "import os; print(os.pread(77, 9, 0), os.get_inheritable(77))"
    memory = os.memfd_create("memory")
    os.write(memory, b"kept")
    with running(tmp_path, script, preload=preload, environment={SNAPSHOT_FD: "77"}) as server:
        assert server.fork(tmp_path, "script.py", memory=memory).end() == (0, "b'kept' True\n", "")
    os.close(memory)


def test_no_two_workers_draw_the_same_random_numbers_or_share_a_secret(tmp_path: Path) -> None:
    drawn = "numpy.random.rand(), random.random(), multiprocessing.current_process().authkey"
    script = f"import numpy, random, multiprocessing; print([{drawn}])"
    with running(tmp_path, script, modules=["numpy", "random", "multiprocessing"]) as server:
        texts = [server.fork(tmp_path, "script.py").end()[1] for number in range(3)]
    for values in zip(*(text.strip("[]\n").split(", ") for text in texts), strict=True):
        assert len(set(values)) == 3


def test_a_folder_that_was_made_since_is_searched(tmp_path: Path) -> None:
    late = tmp_path / "late"
    preload = f"import sys; sys.path.append({str(late)!r})\ntry:\n    import late\nexcept ImportError: pass"
    with running(tmp_path, "import late; print(late.__file__)", preload=preload) as server:
        late.mkdir()
        (late / "late.py").touch()
        assert server.fork(tmp_path, "script.py").end() == (0, f"{late / 'late.py'}\n", "")


def test_a_forked_worker_keeps_the_garbage_collector_enabled_or_disabled(tmp_path: Path) -> None:
    script = "import gc; print(gc.isenabled(), gc.get_freeze_count() > 0)"
    for before, enabled in ((None, True), ("import gc; gc.disable()", False)):
        with running(tmp_path, script, preload=before) as server:
            assert server.fork(tmp_path, "script.py").end() == (0, f"{enabled} True\n", "")


def test_the_forkserver_exits_when_its_agent_closes_amid_a_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(LENGTH.pack(10) + b"12345")
        ours.close()
        with pytest.raises(SystemExit):
            forkserver.receive(theirs)


def test_output_that_is_printed_first_is_printed_whole() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(["wc", "-c"], stdin=reader, stdout=subprocess.PIPE) as counter:
        os.close(reader)
        forkserver.write(writer, b"x" * 300_000)
        os.close(writer)
        assert counter.stdout.read().strip() == b"300000"
