"""Histories of jobs whose workers are all started again after a loss."""

from dataclasses import replace

from rendezvous.core.messages import HostsChanged, Noticed, Signalled, WorldOpened
from rendezvous.core.model import Host, Policy, Restarts
from tests.rendezvous.core.history import Chance, ElasticChance


class RestartChance(Chance):
    """One seeded history of a job of a fixed size in which anything may happen."""

    def choose_policy(self) -> Policy:
        """All workers are started again, once, some times, or for ever."""
        least = self.random.randint(1, 6)
        start, lease = (self.random.choice([2.0, 10.0, 40.0]) for _ in range(2))
        recovery = replace(super().choose_policy().recovery, elastic_timeout_seconds=20.0)
        restarts = Restarts(self.random.choice([1, 3, None]))
        return Policy(least, least, 0, start, lease, recovery=recovery, restarts=restarts)


class RoundChance(ElasticChance):
    """One seeded history of a job whose agents and workers tell the truth, though some are silent, or cannot be killed.

    Its program calls `init()`, or never does; it recovers in place first, or never does; its size changes, or does not.
    """

    returncodes = (1, 1, 3, -9, -9, -9, -6, -11, 137, -12)

    def choose_policy(self) -> Policy:
        """All workers are started again, once, some times, or for ever."""
        chance = self.random
        policy = super().choose_policy()
        restarts = Restarts(
            limit=chance.choice([1, 3, None]),
            grace_seconds=chance.choice([0.0, 2.0]),
            planned_grace_seconds=chance.choice([2.0, 30.0]),
            grow_after_seconds=chance.choice([None, 3.0]),
            has_checkpoint=chance.random() < 0.5,
        )
        policy = replace(policy, restarts=restarts)
        if chance.random() < 0.5:
            policy = replace(policy, failures_allowed=0)
        elif chance.random() < 0.5:
            limit = chance.choice([restarts.limit, 0])
            policy = replace(policy, restarts=replace(restarts, needs_world=True, limit=limit))
        if chance.random() < 0.4:
            size = policy.slots_to_start
            policy = replace(policy, min_size=size, max_size=size, start_size=size)
        return policy

    def prepare(self) -> None:
        """Choose what kind of program it is, and how badly the hosts behave."""
        chance, world = self.random, self.world
        world.joins = chance.random() < 0.5
        world.has_states &= world.joins and self.witness.policy.is_elastic
        world.stuck = chance.choice([0.0, 0.0, 0.05])
        world.unheard = chance.choice([0.0, 0.0, 0.2])

    def happen(self) -> None:
        """What an elastic job has, and what is worst where all are to be started again."""
        chance, world, state = self.random, self.world, self.witness.state
        if not state.workers or chance.random() > 0.1:
            return super().happen()
        hosts = list(state.hosts)
        what = chance.random()
        if state.restart is not None and what < 0.5:
            if what < 0.1 and hosts:
                return world.lose(chance.choice(hosts))
            if what < 0.2 and hosts:
                return world.tell(Noticed(chance.choice(hosts)))
            if what < 0.22:
                return world.tell(Noticed(None))
            if what < 0.3 and hosts:
                return world.tell(Signalled(chance.choice(hosts), 15))
            return world.tell(HostsChanged(tuple(chance.sample(self.hosts, chance.randint(1, len(self.hosts))))))
        if what < 0.2 and hosts:
            return world.tell(WorldOpened(chance.choice(hosts)))
        if what < 0.6 and hosts:
            return world.cut.add(chance.choice(hosts))
        if what < 0.9:
            return world.fail_together()
        return self.pass_much_time()

    def pass_much_time(self) -> None:
        """So much that a round that ends is none that ended at once."""
        for _ in range(12):
            self.world.pass_time(self.witness.policy.lease_seconds / 4)

    def list_hosts(self) -> list[Host]:
        """Mostly enough of them, some with fewer slots than before."""
        if self.random.random() < 0.3:
            return super().list_hosts()
        hosts = [replace(each, slots=self.random.randint(1, each.slots)) for each in self.hosts]
        return [*hosts, Host("h9", self.witness.policy.slots_to_start)]
