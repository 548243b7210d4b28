"""Why a backend is not used: each error is one sentence, and reaches whoever must catch it."""

import pytest

from worker_runtime.backends.errors import BackendRefusedError, CanaryError, SharedDeviceError
from worker_runtime.errors import InitializationError
from worker_runtime.membership import Backend


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BackendRefusedError(Backend.UCC, "torch 2.13 has none; take another"), "the backend ucc cannot be used here:"),
        (CanaryError(Backend.UCC, [1, 3], 4, "it was wrong"), r"on 2 of 4 members \(the first is member 1\): it was"),
        (CanaryError(Backend.UCC, [1], 4, ""), r"member 1\); use another one, as with --backend gloo$"),
        (SharedDeviceError("cuda:0", 1), r"of local rank 1, uses cuda:0\).* torch\.cuda\.set_device\(hvd\.local_rank"),
        (SharedDeviceError("cuda:0", None), r"\(this worker uses cuda:0\)"),
    ],
)
def test_an_error_is_one_sentence(error: Exception, words: str) -> None:
    with pytest.raises(type(error), match=words):
        raise error
    assert "\n" not in str(error)


def test_a_refusal_ends_init_and_a_canary_also_what_makes_groups_later() -> None:
    assert issubclass(BackendRefusedError, InitializationError)
    assert issubclass(CanaryError, InitializationError)
    assert issubclass(CanaryError, RuntimeError)
