"""The sentence for what is not served, in each of its forms."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("horovod.tensorflow", r"--horovod-shim auto\)\.$"),
        ("horovod.runner", r"hvdrun -np 2 python train\.py\.$"),
    ],
)
def test_the_sentence_says_what_is_served_and_what_to_do(name: str, remedy: str) -> None:
    error = import_module("horovod._unserved").UnservedError(name)
    assert isinstance(error, ImportError)
    assert error.name == name
    with pytest.raises(ImportError, match=rf"^{name} is not served: .*horovod\.mxnet and horovod\.common\. .*{remedy}"):
        raise error
