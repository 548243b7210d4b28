"""Skips tests where a framework is not installed."""

from importlib.util import find_spec

import pytest

NO_MXNET = "mxnet is not installed: with Python 3.11, pip install '.[mxnet]'"
needs_mxnet = pytest.mark.skipif(find_spec("mxnet") is None, reason=NO_MXNET)
