"""The search path on which workers find `horovod`. Pure.

The folder `modules` is no package, but a search path with `horovod`, and with the `sitecustomize` by which an agent can
ask executed workers where they are. `modules/horovod/__init__.py` chooses between Horovod and hvdrun's replacement.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from rendezvous.bootstrap import HOROVOD_SHIM

FOLDER = Path(__file__).resolve().parent / "modules"
VARIABLE = os.fsencode(HOROVOD_SHIM)
_SEARCH = b"PYTHONPATH"
_BETWEEN = os.fsencode(os.pathsep)


class ShimMode(StrEnum):
    """What `import horovod` imports in the workers."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def prepend_shim(environment: Mapping[bytes, bytes], folder: bytes = os.fsencode(FOLDER)) -> dict[bytes, bytes]:
    """The environment with the shim's folder first on PYTHONPATH, or without it if `VARIABLE` is off.

    Other entries stay. The folder may already be there, from a job that contains this one.
    """
    changed = dict(environment)
    mode = changed.get(VARIABLE)
    if mode is None:
        return changed

    entries = changed.get(_SEARCH, b"").split(_BETWEEN)
    own = _BETWEEN.join(entry for entry in entries if entry != folder)
    if mode != os.fsencode(ShimMode.OFF):
        changed[_SEARCH] = folder
        # An empty entry would mean the working directory.
        if own:
            changed[_SEARCH] = folder + _BETWEEN + own
    elif folder in entries:
        changed.pop(_SEARCH)
        if own:
            changed[_SEARCH] = own
    return changed
