"""The states of a training with MXNet: one for Gluon, one for Module."""

from collections.abc import Callable
from typing import Any

import mxnet as mx

from worker_runtime.api.basics import rank
from worker_runtime.api.functions import broadcast_object
from worker_runtime.elastic import sampler
from worker_runtime.elastic.handled import HandledState
from worker_runtime.elastic.handlers import Registry, SamplerStateHandler, Stateful, StatefulHandler
from worker_runtime.elastic.parts import list_parts
from worker_runtime.errors import WrongArgumentError
from worker_runtime.mxnet.elastic.handlers import NetHandler, OptimizerHandler
from worker_runtime.mxnet.elastic.modules import ModuleHandler


class ElasticSampler(sampler.ElasticSampler, mx.gluon.data.Sampler):  # type: ignore[misc]  # mxnet has no types
    """The elastic sampler for a Gluon DataLoader; see `worker_runtime.elastic.sampler.ElasticSampler`.

    Args:
        dataset: the data set; only its length is used.
        shuffle: use a random order, a new one in each epoch, the same on all ranks.
        seed: the seed of the random order.
    """


REGISTRY = Registry(
    [
        (mx.gluon.Block, NetHandler),
        (mx.gluon.ParameterDict, NetHandler),
        (mx.gluon.Trainer, OptimizerHandler),
        (mx.mod.BaseModule, ModuleHandler),
        (sampler.ElasticSampler, SamplerStateHandler),
        (Stateful, StatefulHandler),
    ]
)


_TRAINED = (
    "the state's {} is or has an array with a gradient, which restore() could not bring back in place; make it a "
    "gluon.Parameter of a block, and give the block"
)


class MXNetState(HandledState):
    """A state whose attributes may be MXNet's objects.

    Args:
        **values: the attributes and their values.
    """

    def __init__(self, **values: object) -> None:
        super().__init__(lambda value: broadcast_object(value, root_rank=0), rank, REGISTRY)
        self.register(**values)

    def check_plain(self, name: str, value: Any) -> None:
        """See `HandledState.check_plain`; refuses arrays that are trained, too.

        Raises:
            ValueError: it is or has one.
        """
        super().check_plain(name, value)
        for _, part in list_parts(value):
            if isinstance(part, mx.gluon.Parameter) or (isinstance(part, mx.nd.NDArray) and part.grad is not None):
                raise WrongArgumentError(_TRAINED.format(name))


class GluonState(MXNetState):
    """The state of a training with Gluon, for `elastic.run`.

    You can give blocks, trainers, `ElasticSampler`s, and all objects with a state_dict under any keyword. Of a block
    its parameters are saved, with the running means of BatchNorm. Of a trainer: its optimizer's states, update counts
    and settings, the learning rate scheduler among them, the `lr_mult` and `wd_mult` of its parameters, and the loss
    scaler of `mxnet.contrib.amp`. Other values must be picklable. Each object becomes an attribute. If you assign
    another object to an attribute, the state saves that one from then on.

    Parameters may be uninitialized. A new worker gets their shapes with the state.

    MXNet does not tell the state of its random numbers. So a training with dropout goes on with other ones after a
    checkpoint.

    Args:
        net: a block.
        trainer: a `DistributedTrainer`, or a `gluon.Trainer` with `kvstore=None`.
        **values: more attributes and their values.

    Raises:
        ValueError: the trainer's states are in a key-value store.
    """

    def __init__(
        self, net: mx.gluon.Block | None = None, trainer: mx.gluon.Trainer | None = None, **values: object
    ) -> None:
        super().__init__(net=net, trainer=trainer, **values)


class ModuleState(MXNetState):
    """The state of a training with a Module, for `elastic.run`.

    It saves the module's parameters, auxiliary values and optimizer, and everything that `GluonState` does. Give an
    `epoch`, and begin `fit` with it:

        module.fit(data, kvstore=None, begin_epoch=state.begin(data), num_epoch=3,
                   batch_end_callback=state.commit_every(10), epoch_end_callback=state.end_epoch)

    Args:
        module: a Module or BucketingModule, after `bind`, `init_params` and `init_optimizer(kvstore=None, ...)`.
        **values: more attributes and their values.

    Raises:
        ValueError: the module has no optimizer yet, or its states are in a key-value store.
    """

    def __init__(self, module: mx.mod.BaseModule, **values: object) -> None:
        if not isinstance(module, mx.mod.Module | mx.mod.BucketingModule):
            raise WrongArgumentError(f"ModuleState takes a Module or a BucketingModule, not {type(module).__name__}")
        if not module.optimizer_initialized:
            raise WrongArgumentError(
                "ModuleState: the module has no optimizer yet; call its bind(), init_params() and "
                "init_optimizer(kvstore=None, ...) before"
            )
        super().__init__(module=module, **values)

    def begin(self, data: mx.io.DataIter) -> int:
        """Reset the iterator, and return the epoch for the `begin_epoch` of `fit`: the first one with a batch left.

        Args:
            data: the iterator of the training's data.

        Raises:
            ValueError: the state has no epoch.
        """
        self._check_epoch("begin()")
        data.reset()
        if self._list_samplers():
            if not data.iter_next():
                self._go_on()
            data.reset()
        epoch: int = self.epoch
        return epoch

    def commit_every(self, batches: int) -> Callable[[Any], None]:
        """Return a `batch_end_callback` for `fit`. It records each batch in the samplers, and commits every so often.

        Args:
            batches: the number of batches between commits.

        Raises:
            ValueError: the number is not at least 1.
        """
        if batches < 1:
            raise WrongArgumentError(f"ModuleState.commit_every() takes a number of batches, at least 1, not {batches}")

        def end_batch(parameters: Any) -> None:
            for each in self._list_samplers():
                each.record_batch(parameters.nbatch, parameters.locals["train_data"].batch_size)
            if (parameters.nbatch + 1) % batches == 0:
                self.commit()

        return end_batch

    def end_epoch(self, *_: object) -> None:
        """Go to the next epoch, and commit: the `epoch_end_callback` of `fit`.

        If lost workers have left samples of the epoch, `fit` begins again with them.

        Raises:
            ValueError: the state has no epoch.
        """
        self._check_epoch("end_epoch()")
        if self._list_samplers():
            self.check_host_updates()  # after a loss, this begins again
        self._go_on()
        self.commit()

    def _check_epoch(self, method: str) -> None:
        if "epoch" not in vars(self):
            raise WrongArgumentError(
                f"ModuleState.{method} needs the state's epoch; create it with ModuleState(module=module, epoch=0)"
            )

    def _go_on(self) -> None:
        self.epoch += 1
        for each in self._list_samplers():
            each.set_epoch(self.epoch)

    def _list_samplers(self) -> list[sampler.ElasticSampler]:
        values = (handler.value for handler in self._handlers.values())
        return [value for value in values if isinstance(value, sampler.ElasticSampler)]
