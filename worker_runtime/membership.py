"""The one door from a training process to the rendezvous package; see `own_packages` for why there is only one."""

from typing import TYPE_CHECKING

from worker_runtime.own_packages import own_packages

if TYPE_CHECKING:
    from rendezvous.client import WorkerClient

with own_packages():
    from rendezvous.bootstrap import Bootstrap
    from rendezvous.core.model import Assignment, Endpoint, Membership, Slot
    from rendezvous.core.ranking import rank
    from rendezvous.errors import RendezvousError
    from rendezvous.forking import DESCRIPTORS, LENGTH, Forked, ForkRequest, Message, Ready, decode, encode

__all__ = [
    "DESCRIPTORS",
    "LENGTH",
    "Assignment",
    "Bootstrap",
    "Endpoint",
    "ForkRequest",
    "Forked",
    "Membership",
    "Message",
    "Ready",
    "RendezvousError",
    "Slot",
    "decode",
    "encode",
    "import_client",
    "rank",
]


def import_client() -> "type[WorkerClient]":
    """The class of the rendezvous' client; it brings gRPC, which costs 76 ms that a world of one need not pay."""
    with own_packages():
        from rendezvous.client import WorkerClient  # noqa: PLC0415 - see above
    return WorkerClient
