"""What is said to whoever imports a part of Horovod that is not served."""

_SERVED = "horovod.torch, horovod.mxnet, horovod.common, horovod.runner and horovod.run()"
_REMEDY = "Where Horovod itself is installed, hvdrun leaves the name to it (--horovod-shim auto)."


class UnservedError(ImportError):
    """A part of Horovod that this project does not serve.

    Cause: The script imports a part of Horovod that hvdrun does not have.
    Remedy: See what [is not served](../moving/from-horovod.md).
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is not served: the horovod of this process is hvdrun's own, which has {_SERVED}. {_REMEDY}",
            name=name,
        )
