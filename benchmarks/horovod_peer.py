"""Horovod as a contender, where it is installed, in processes that hvdrun has started.

Horovod's workers meet through a server that horovodrun starts; here rank 0 starts it. Horovod's background thread
wakes every millisecond, also in the turns of the others. So measure this project, DDP and gloo where Horovod is not
installed.
"""

import importlib
import importlib.metadata
import os
from types import ModuleType

import torch.distributed as dist


def join_horovod(name: str = "horovod.torch") -> ModuleType | None:
    """Initialize Horovod on gloo; None where it is not installed. torch's default group must exist.

    An importable folder named horovod proves nothing: hvdrun adds one that imports this project.

    Args:
        name: its module; a module that Horovod was built without counts as not installed.
    """
    try:
        importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
        os.environ.update(_start_meeting())
    # A thousand names are remembered for each way of submitting them; by default it forgets some, warns, and is slower.
    os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "8192")
    try:
        horovod = importlib.import_module(name)
    except ImportError:
        return None
    horovod.init()
    return horovod


def _start_meeting() -> dict[str, str]:
    """The environment variables by which Horovod's workers find each other, the same on all of them."""
    shared: list[dict[str, str]] = [{}]
    if dist.get_rank() == 0:
        hosts = importlib.import_module("horovod.runner.common.util.hosts")
        server = importlib.import_module("horovod.runner.http.http_server").RendezvousServer()
        port = server.start()  # its thread is a daemon: it ends with this process
        size = dist.get_world_size()
        server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{size}"), size))
        shared = [
            {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_HOSTNAME": "localhost",
            }
        ]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]
