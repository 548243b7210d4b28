"""Functions on several hosts: they and their results travel, and find the modules that the hosts share."""

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
