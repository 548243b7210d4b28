"""Scripts that write checkpoints into memory continue from those on a disk when the host of that memory is lost."""

import pytest

from tests.system.hosts.cluster import Cluster
from tests.system.packages import IMPORTS_SECONDS, make_environment
from tests.system.snapshot_recipes import RECIPES, check_losses, read_begins
from tests.system.test_restarted_programs import PACKAGES

OPTIONS = ("--lease", "2s", "--blacklist-cooldown-range", "600", "600")
ENDS = "os.kill(os.getpid(), signal.SIGKILL)"
LOSES_HOST = "os.kill(os.getpid() if ROUND else os.getppid(), signal.SIGKILL); time.sleep(60)"


@pytest.mark.nightly
@pytest.mark.timeout(600)  # packages are installed, and each start imports them
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_lost_host_s_files_are_missed_by_name_and_the_next_host_s_are_kept(pair: Cluster, recipe: str) -> None:
    environment = {"PATH": make_environment(pair.directory / "packages", *PACKAGES)}
    pair.write("train.py", RECIPES[recipe].replace(ENDS, LOSES_HOST))
    alone = ("-np", "2", "-H", "host1:2", "python", "train.py")
    undisturbed = pair.start(*alone, environment=environment).wait(IMPORTS_SECONDS)
    for path in (pair.directory / "checkpoints").iterdir():
        path.rename(pair.directory / path.name)  # out of the way
    words = ("-np", "2", "-H", "host1:2,host2:2", "--max-restarts", "2", *OPTIONS)
    running = pair.start(*words, "python", "train.py", "0,7", "1,10", environment=environment)
    finished = running.wait(IMPORTS_SECONDS)
    assert finished.returncode == 0, finished.stderr
    check_losses(undisturbed.stdout, finished.stdout)
    steps, paths = zip(*read_begins(finished.stdout), strict=True)
    assert steps == (0, 5, 11)
    assert "checkpoints" in paths[1]
    assert paths[2].startswith("/dev/shm/hvdrun-")  # noqa: S108 - where it is to be
    assert "any snapshots of host1 are lost: the script starts from its own checkpoint" in finished.stderr
    pair.end_sessions()
