"""The card of a worker, which others may share."""

import os

import torch


def choose_card(local_rank: int, *, is_shared: bool) -> None:
    """Use the card of a local rank, also where there are fewer cards than workers.

    NCCL refuses two workers of one host on one card. So where they share cards, each is told to it as a host of its
    own, which NCCL connects by sockets. Call it before the first operation on a card.
    """
    if is_shared:
        os.environ |= {"NCCL_HOSTID": f"worker-{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
