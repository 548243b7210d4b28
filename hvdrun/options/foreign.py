"""Flags of torchrun and Python that people type before the command, and what to do instead."""

_IN_COMMAND = "it belongs to Python, as in hvdrun -np 2 python -m module."
_NO_NEED = "leave it out, hvdrun connects the workers by itself."
_NO_CHOICE = "leave it out, there is nothing to choose here."
_FILES = "--output-filename DIR writes what each worker prints into files too."
_REMEDIES = {  # for the flags of torchrun and Python, without their dashes
    "m": _IN_COMMAND,
    "module": _IN_COMMAND,
    "nproc-per-node": "-np is the number of all workers, as in hvdrun -np 2 python train.py.",
    "nnodes": "-H names the hosts, as in -H server1:4,server2:4.",
    "max-restarts": "an elastic job (--min-np) replaces workers that fail, and --reset-limit bounds how often.",
    "standalone": _NO_NEED,
    "node-rank": _NO_NEED,
    "local-addr": _NO_NEED,
    "master-addr": _NO_NEED,
    "master-port": _NO_NEED,
    "rdzv-backend": _NO_NEED,
    "rdzv-conf": _NO_NEED,
    "rdzv-endpoint": _NO_NEED,
    "rdzv-id": _NO_NEED,
    "no-python": "leave it out, hvdrun starts any program.",
    "run-path": _IN_COMMAND,
    "log-dir": _FILES,
    "r": _FILES,
    "redirects": _FILES,
    "t": _FILES,
    "tee": _FILES,
    "local-ranks-filter": _FILES,
    "duplicate-stdout-filters": _FILES,
    "duplicate-stderr-filters": _FILES,
    "role": _NO_CHOICE,
    "start-method": _NO_CHOICE,
    "event-log-handler": _NO_CHOICE,
    "logs-specs": _NO_CHOICE,
    "signals-to-handle": _NO_CHOICE,
    "virtual-local-rank": _NO_CHOICE,
    "numa-binding": "hvdrun's -bind-to numa gives each worker a NUMA node.",
    "shutdown-timeout": "hvdrun's --grace is the time that a worker has to end.",
    "monitor-interval": "leave it out, hvdrun learns of an end when it happens.",
}


def find_remedy(flag: str) -> str | None:
    """What to do instead of a flag of torchrun or Python; None for any other."""
    return _REMEDIES.get(flag.lstrip("-").replace("_", "-"))
