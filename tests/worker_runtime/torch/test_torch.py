"""What `import worker_runtime.torch as hvd` offers."""

import worker_runtime.torch as hvd


def test_every_public_name_is_there() -> None:
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def test_init_and_shutdown_may_be_repeated() -> None:
    try:
        hvd.init()
        hvd.init()
        assert (hvd.is_initialized(), hvd.rank(), hvd.size()) == (True, 0, 1)
        assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (0, 1, 0, 1)
    finally:
        hvd.shutdown()
        hvd.shutdown()
    assert not hvd.is_initialized()
