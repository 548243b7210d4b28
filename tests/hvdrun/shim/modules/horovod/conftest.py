"""Within each test here `import horovod` means the shim, imported anew."""

import sys
from collections.abc import Iterator

import pytest

from hvdrun.shim.path import FOLDER


@pytest.fixture(autouse=True)
def shim(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put its folder on the search path, and forget afterwards what was imported from there."""
    monkeypatch.delenv("HVD_HOROVOD_SHIM", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]
