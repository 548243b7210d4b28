"""A network whose first gradients wait until they are let through."""

import threading

import mxnet as mx

from tests.waiting import LIMIT_SECONDS

WIDTH = 1200


class Gate(mx.operator.CustomOp):
    """Lets everything pass; backward only when it is open, or after the limit."""

    is_open = threading.Event()
    timed_out: list[bool] = []  # noqa: RUF012 - of the class: MXNet makes the instances

    def forward(self, **arguments: list) -> None:
        """Pass on."""
        self.assign(arguments["out_data"][0], arguments["req"][0], arguments["in_data"][0])

    def backward(self, **arguments: list) -> None:
        """Pass on what comes before the gradients of earlier layers."""
        self.timed_out.append(not self.is_open.wait(LIMIT_SECONDS))
        self.assign(arguments["in_grad"][0], arguments["req"][0], arguments["out_grad"][0])


@mx.operator.register("hvd_gate")
class GateProp(mx.operator.CustomOpProp):
    """What MXNet wants to know of it."""

    def infer_shape(self, in_shape: list) -> tuple[list, list, list]:
        """The same."""
        return in_shape, [in_shape[0]], []

    def create_operator(self, *_: object) -> Gate:
        """Another one."""
        return Gate()


class GatedNet(mx.gluon.HybridBlock):
    """A layer, the gate, and layers of 33 MiB, more than a bucket holds: in backward they come first.

    Args:
        first: the name of the layer before the gate. Those after it begin with "m".
    """

    def __init__(self, first: str = "a") -> None:
        super().__init__(prefix="gated_")
        with self.name_scope():
            self.first = mx.gluon.nn.Dense(WIDTH, in_units=WIDTH, prefix=f"{first}_")
            self.rest = mx.gluon.nn.HybridSequential(prefix="m_")
            for _ in range(6):
                self.rest.add(mx.gluon.nn.Dense(WIDTH, in_units=WIDTH))

    def hybrid_forward(self, F: object, x: object) -> object:  # noqa: N803 - Gluon's name
        """Apply them."""
        return self.rest(F.Custom(self.first(x), op_type="hvd_gate"))
