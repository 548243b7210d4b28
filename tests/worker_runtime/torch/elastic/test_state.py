"""The state of a training: committed, restored, synchronised."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.elastic import sampler as samplers
from worker_runtime.errors import HostsUpdatedInterrupt
from worker_runtime.torch.elastic import state as states

pytestmark = pytest.mark.devices


def make_training(seed: int, lr: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.tensor([[1.0, 2.0], [3.0, 5.0]])).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def describe(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> object:
    momenta = [values["momentum_buffer"].tolist() for values in optimizer.state_dict()["state"].values()]
    tensors = {name: value.tolist() for name, value in model.state_dict().items()}
    return tensors, momenta, optimizer.param_groups[0]["lr"]


def test_commit_and_restore_bring_model_optimizer_and_values_back(ranks: RankPool) -> None:
    def body() -> object:
        model, optimizer = make_training(0, 0.1)
        take_step(model, optimizer)
        state = hvd.elastic.TorchState(model, optimizer, epoch=1, history=[])
        before = describe(model, optimizer)
        for _ in range(2):
            take_step(model, optimizer)
            state.epoch = 7
            state.history.append(1)
            state.restore()
            assert (describe(model, optimizer), state.epoch, state.history) == (before, 1, [])
        take_step(model, optimizer)
        state.epoch = 2
        state.commit()
        after = describe(model, optimizer)
        take_step(model, optimizer)
        state.restore()
        return describe(model, optimizer) == after, after != before, state.epoch

    assert ranks.run(body, size=1) == [(True, True, 2)]


def test_one_object_under_two_names_of_a_state_stays_one(ranks: RankPool) -> None:
    def body() -> None:
        for shared in ([1], {"a": 1}, torch.ones(2)):
            ring: list[object] = [shared]
            ring.append(ring)
            state = hvd.elastic.TorchState(one=shared, other=shared, inside=[shared], ring=ring)
            state.restore()
            assert state.one is state.other is state.inside[0] is state.ring[0]
            assert state.one is not shared
            assert state.ring[1] is state.ring

    ranks.run(body, size=1)


def test_sync_gives_all_ranks_the_state_of_rank_0_which_counts_as_committed(ranks: RankPool) -> None:
    def body() -> object:
        model, optimizer = make_training(hvd.rank(), 0.1 * (hvd.rank() + 1))
        if hvd.rank() == 0:
            take_step(model, optimizer)  # the other has no optimizer state yet
        sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
        sampler.record_batch(0, hvd.rank() + 1)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=hvd.rank() + 5)
        state.sync()
        seen = describe(model, optimizer), state.epoch, sampler.state_dict(), list(sampler)
        take_step(model, optimizer)
        state.epoch = 99
        sampler.record_batch(1, 1)
        state.restore()
        assert seen == (describe(model, optimizer), state.epoch, sampler.state_dict(), list(sampler))
        return seen

    first, second = ranks.run(body)
    assert first[:3] == second[:3]
    assert (first[1], first[2]["processed_num"]) == (5, 2)
    assert sorted(first[3] + second[3]) == list(range(2, 10))


def test_several_objects_of_a_kind_stand_under_any_name_and_are_attributes(ranks: RankPool) -> None:
    def body() -> object:
        (first, _), (second, _) = make_training(hvd.rank(), 0.1), make_training(hvd.rank() + 10, 0.1)
        state = hvd.elastic.TorchState(second, generator=first)
        state.sync()
        assert state.generator is first
        assert state.model is second
        return first[0].bias.tolist(), second[0].bias.tolist(), state.optimizer

    expected = [make_training(seed, 0.1)[0][0].bias.tolist() for seed in (0, 10)]
    assert ranks.run(body) == [(*expected, None)] * 2


def test_an_attribute_of_the_state_can_be_replaced_by_another_object(ranks: RankPool) -> None:
    def body() -> object:
        (first, _), (second, _) = make_training(0, 0.1), make_training(1, 0.1)
        state = hvd.elastic.TorchState(model=first)
        state.model = second
        expected = second[0].bias.tolist()
        with torch.no_grad():
            second[0].bias.zero_()
        state.restore()
        return state.model is second, second[0].bias.tolist() == expected

    assert ranks.run(body, size=1) == [(True, True)]


@pytest.mark.parametrize("size", [1, 2])
def test_batches_whose_gradients_are_not_in_the_model_yet_are_not_processed(ranks: RankPool, size: int) -> None:
    def body() -> object:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)
        sampler = hvd.elastic.ElasticSampler(range(20))
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler)
        counts = []
        for number in range(1, 6):
            model(torch.ones(1, 1)).sum().backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
            sampler.record_batch(0, 1)
            state.save()
            counts.append(state.to_checkpoint()["handled"]["sampler"]["processed_num"])
        return counts[1:]

    assert ranks.run(body, size=size) == [[2 * size, 2 * size, 4 * size, 4 * size]] * size


def test_buffers_of_a_model_are_kept_too_and_are_not_the_copy(ranks: RankPool) -> None:
    class Keeping(torch.nn.Linear):
        def get_extra_state(self) -> object:
            return {"count": self.count, "kept": self.kept}

        def set_extra_state(self, state: dict[str, object]) -> None:
            self.count, self.kept = state["count"], state["kept"]

    def body() -> object:
        model = Keeping(1, 1)
        model.count, model.kept = hvd.rank() + 3, torch.zeros(2)
        state = hvd.elastic.TorchState(model=model)
        state.sync()
        synced, model.count = model.count, 9
        for _ in range(2):
            state.restore()
            model.kept += 1
        state.restore()
        return synced, model.count, model.kept.tolist()

    assert ranks.run(body) == [(3, 3, [0.0, 0.0])] * 2


def test_handlers_of_a_programs_own_can_be_registered(ranks: RankPool) -> None:
    def body() -> object:
        class Meter:
            total = 0

        class MeterHandler(states.StateHandler):
            def save(self) -> None:
                self.saved = self.value.total

            def restore(self) -> None:
                self.value.total = self.saved

            def sync(self) -> None:
                self.value.total = hvd.broadcast_object(self.value.total)
                self.save()

        before = states.get_handler_registry()
        states.set_handler_registry([(Meter, MeterHandler), *before])
        try:
            meter = Meter()
            meter.total = hvd.rank() + 1
            state = hvd.elastic.TorchState(meter=meter)
            state.sync()
            meter.total += 5
            state.restore()
        finally:
            states.set_handler_registry(before)
        return meter.total, state.meter is meter

    assert ranks.run(body) == [(1, True)] * 2


def test_schedulers_and_scalers_are_kept_with_their_own_optimizer(ranks: RankPool) -> None:
    """As plain values they would be replaced by copies, which change an optimizer that never steps."""

    def body() -> object:
        model, optimizer = make_training(0, 0.8)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0 * (hvd.rank() + 1))
        state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, scaler=scaler)
        for _ in range(hvd.rank()):
            take_step(model, optimizer)
            scheduler.step()
        state.sync()
        rates = [optimizer.param_groups[0]["lr"]]
        take_step(model, optimizer)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        scaler.scale(torch.ones(()))
        scaler.update(1.0)
        state.restore()
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        return rates, scheduler.last_epoch, scaler.get_scale(), state.scheduler is scheduler

    assert ranks.run(body) == [([0.8, 0.4, 0.8, 0.4], 1, 16.0, True)] * 2


def test_a_lost_rank_s_samples_begin_the_function_anew(ranks: RankPool) -> None:
    def body() -> object:
        sampler = hvd.elastic.ElasticSampler(range(6), shuffle=False)
        state = hvd.elastic.TorchState(sampler=sampler)
        dealt = []

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            dealt.append((len(state.sampler), state.sampler.num_replicas))
            state.commit()
            samplers.RUNTIME.engine.steps.completed = 1, (0, 1)
            state.sampler._members = (0, 1, 2) if len(dealt) == 1 else (0, 1)  # as if one more had been there
            state.commit()

        train(state)
        return dealt

    assert ranks.run(body) == [[(3, 2), (3, 2)]] * 2


def test_samples_are_dealt_out_anew_also_where_the_sync_is_skipped(ranks: RankPool) -> None:
    """In Horovod only the sync deals: without it, samples go to ranks that are not there any more."""

    def body() -> object:
        sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
        state = hvd.elastic.TorchState(sampler=sampler)
        state.sync()
        for batch in range(2):  # as if steps had been completed
            samplers.RUNTIME.engine.steps.completed = batch + 1, (0, 1)
            sampler.record_batch(batch, 1)
        dealt, syncs = [], []
        state._handlers["sampler"].sync = lambda: syncs.append("sync")
        state.register_reset_callbacks([lambda: dealt.append(list(sampler))])

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            dealt.append(list(state.sampler))
            if len(dealt) == 1:
                raise HostsUpdatedInterrupt(skip_sync=True)

        train(state)
        return dealt, syncs

    expected = [[0, 2, 4, 6], [4, 6], [4, 6]], [[1, 3, 5, 7], [5, 7], [5, 7]]
    assert ranks.run(body) == [(dealt, ["sync"]) for dealt in expected]


@pytest.mark.parametrize("op", [None, hvd.Average, hvd.Adasum])
def test_gradients_of_an_interrupted_step_are_not_added_to_the_next_one(ranks: RankPool, op: int | None) -> None:
    """A program may clear gradients at the end of its loop, and a function begins again before that."""

    def body() -> object:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if op is not None:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op)
        state = hvd.elastic.TorchState(model, optimizer, step=0)
        interrupts = [HostsUpdatedInterrupt(), hvd.HorovodInternalError("a loss")]

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            while state.step < 4:
                model(torch.ones(1, 1)).sum().backward()
                if state.step == 2 and interrupts:
                    raise interrupts.pop()
                optimizer.step()
                optimizer.zero_grad()
                state.step += 1
                state.commit()

        train(state)
        return model.weight.item()

    assert ranks.run(body) == [-4.0] * 2


def test_a_scaler_begins_a_step_anew_after_an_interrupted_one(ranks: RankPool) -> None:
    """The scaler would refuse to unscale gradients again, or step with gradients that are not unscaled."""

    def body() -> object:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        scaler = torch.amp.GradScaler(model.weight.device.type, init_scale=8.0)
        state = hvd.elastic.TorchState(model, optimizer, scaler=scaler, step=0)
        interrupts = [HostsUpdatedInterrupt(), hvd.HorovodInternalError("a loss")]

        @hvd.elastic.run
        def train(state: hvd.elastic.TorchState) -> None:
            while state.step < 4:
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(1, 1)).sum()).backward()
                scaler.unscale_(optimizer)
                if state.step == 2 and interrupts:
                    raise interrupts.pop()
                scaler.step(optimizer)
                scaler.update()
                state.step += 1
                state.commit()

        train(state)
        return model.weight.item(), scaler.get_scale()

    assert ranks.run(body) == [(-4.0, 8.0)] * 2


def test_a_sync_is_skipped_only_where_all_ranks_know_the_same(ranks: RankPool) -> None:
    def body() -> object:
        model, _ = make_training(0, 0.1)
        sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
        state = hvd.elastic.TorchState(model, sampler=sampler)
        needs = [state.needs_sync()]
        sampler.record_batch(0, 1)  # of no step: each rank counts who is there when it comes here
        needs.append(state.needs_sync())
        state.on_reset()
        return [*needs, state.needs_sync()]

    assert ranks.run(body) == [[False, True, False]] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_copies_lie_in_the_hosts_memory() -> None:
    """In Horovod they stay on the device, and cost as much memory there as the training itself."""
    model, optimizer = make_training(0, 0.1)
    model.cuda()
    model(torch.ones(2, 2, device="cuda")).sum().backward()
    optimizer.step()
    kept = [states.ModelStateHandler(model)._saved.values()]
    kept += [values.values() for values in states.OptimizerStateHandler(optimizer)._saved["state"].values()]
    devices = {value.device.type for values in kept for value in values if isinstance(value, torch.Tensor)}
    assert devices == {"cpu"}


def test_a_program_may_derive_its_own_state_class() -> None:
    class Own(hvd.elastic.ObjectState):
        """A state of a program's own."""

    state = Own(lambda value: value, lambda: 0, step=1)
    assert isinstance(state, hvd.elastic.State)
    assert issubclass(hvd.elastic.TorchState, hvd.elastic.ObjectState)
    assert set(hvd.elastic.__all__) >= {"State", "ObjectState"}
