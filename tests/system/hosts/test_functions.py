"""Functions on several hosts: they and their results travel, and the program's modules where hosts lack them."""

import shutil
from pathlib import Path

from tests.system.hosts.cluster import Cluster
from tests.system.launcher import Running

PROGRAM = """
import os, socket
import beside, hvdrun

with hvdrun.Cluster(hosts="host1:1,host2:2", no_prefork=True, env={"GREETING": "hello"}) as cluster:
    print(cluster.run(lambda: (socket.gethostname(), os.environ["GREETING"], beside.double(int(os.environ["RANK"])))))
    print([len(result) for result in cluster.run(lambda text: text * 3, ("x" * 3_000_000,))])
"""


def test_functions_run_on_the_hosts_and_their_results_come_back(pair: Cluster) -> None:
    pair.write("beside.py", "def double(x):\n    return 2 * x\n")
    program = pair.write("program.py", PROGRAM)
    running = Running(pair.lab.launcher.start(["python", str(program)], directory=pair.directory))
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.splitlines() == [
        "[('host1', 'hello', 0), ('host2', 'hello', 2), ('host2', 'hello', 4)]",
        "[9000000, 9000000, 9000000]",
    ]


UNSHARED = """
import sys
sys.path.insert(0, "/tmp/program/src")
import socket
import hvdrun, models.layers

def work():
    import beside
    return socket.gethostname(), beside.double(models.layers.WIDTH), beside.Half

with hvdrun.Cluster(hosts="host1:1,host2:1", no_prefork=True, wdir="/") as cluster:
    results = cluster.run(work)
    import beside
    print([result[:2] for result in results], {result[2] for result in results} == {beside.Half})
    try:
        cluster.run(lambda: __import__("models_of_another"))
    except ModuleNotFoundError as error:
        print(error.__notes__[0])
"""


def test_modules_beside_a_program_are_found_on_hosts_that_do_not_share_its_folder(pair: Cluster) -> None:
    launcher = pair.lab.launcher
    folder = launcher.locate(Path("/tmp/program"))  # noqa: S108 - each host of the lab has its own
    (folder / "src/models").mkdir(parents=True)
    (folder / "src/models/layers.py").write_text("WIDTH = 3\n", encoding="utf-8")
    (folder / "src/models_of_another.py").touch()
    (folder / "beside.py").write_text("class Half: pass\ndef double(x):\n    return 2 * x\n", encoding="utf-8")
    (folder / "program.py").write_text(UNSHARED, encoding="utf-8")
    try:
        finished = Running(launcher.start(["python", "program.py"], directory="/tmp/program")).wait()  # noqa: S108 - each host of the lab has its own
    finally:
        shutil.rmtree(folder)
    assert (finished.returncode, finished.stderr) == (0, "")
    shown, note = finished.stdout.splitlines()
    assert shown == "[('host1', 6), ('host2', 6)] True"
    assert note.startswith("Here models_of_another is imported from /tmp/program/src/models_of_another.py. Install ")
