"""How workers find a `horovod`: the folder of the shim, and what PYTHONPATH makes of it. Pure.

The folder `modules` is no package: it stands on search paths, so it holds `horovod` and nothing else.
`modules/horovod/__init__.py` decides what `import horovod` means.
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
    """What `import horovod` means in the workers."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def lead_to_shim(environment: Mapping[bytes, bytes], folder: bytes = os.fsencode(FOLDER)) -> dict[bytes, bytes]:
    """The environment with the shim's folder first on PYTHONPATH, as `VARIABLE` says; where it says off, without it.

    What the user has there stays as it is, but for the folder itself, which a job around this one may have put there.
    """
    led = dict(environment)
    mode = led.get(VARIABLE)
    if mode is None:
        return led
    entries = led.get(_SEARCH, b"").split(_BETWEEN)
    own = _BETWEEN.join(entry for entry in entries if entry != folder)
    if mode != os.fsencode(ShimMode.OFF):
        led[_SEARCH] = folder + _BETWEEN + own if own else folder  # an empty entry would mean the working directory
    elif folder in entries:
        led.pop(_SEARCH)
        led.update({_SEARCH: own} if own else {})
    return led
