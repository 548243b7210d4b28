"""Every message that the project's wire can carry, as Hypothesis strategies."""

import os

from hypothesis import strategies as st

from rendezvous.core.messages import Announce, Depart, Exited, Interrupt, Launch, OfferResize, Refuse, Terminate
from rendezvous.core.model import Assignment, Endpoint, Round, Slot, Worker
from rendezvous.core.reports import (
    Action,
    CompletedOperation,
    Done,
    JoinReason,
    PendingOperation,
    RecoveryDecision,
    Report,
)
from rendezvous.wire import codec
from rendezvous.wire.accounts import Account, AccountsReported, RecoveryTime, WaitedFor
from rendezvous.wire.hangs import AskStacks, GiveUp, Stacks, WaitsReported
from rendezvous.wire.notifications import KEY_BYTES, Notification, Published, SequencerFailed
from rendezvous.wire.orders import (
    Addresses,
    Admission,
    AgentAdmitted,
    AgentFailed,
    AgentJoin,
    AgentMessage,
    Alert,
    Begin,
    Credential,
    Examine,
    Examined,
    Hello,
    Hold,
    Input,
    ListAddresses,
    Listening,
    Order,
    Output,
    OutputStream,
    PassOn,
    ProbePeers,
    ProbeResults,
    ProbeTarget,
    Proof,
    Release,
    Remark,
    Reserved,
    Started,
    Stop,
    Taken,
    Wait,
    WorkerOptions,
    Written,
)

UNDECODABLE = "cannot find /data/caf\udce9"
READABLE = "cannot find /data/caf\\udce9"
WORKER = Worker(Slot("a", 0), 1)

texts = st.text()
names = st.text(min_size=1)
words = st.binary().map(os.fsdecode)  # a path or an argument may be any bytes; os.fsdecode makes them a str
numbers = st.integers(0, 2**32 - 1)
generations = st.integers(0, 2**64 - 1)
seconds = st.floats(min_value=0, allow_nan=False)
workers = st.builds(Worker, st.builds(Slot, names, numbers), st.integers(1, 2**32 - 1))
assignments = st.builds(Assignment, st.integers(0, 2**31), st.just(2**31 + 1), numbers, numbers, numbers, numbers)
endpoints = st.builds(Endpoint, names, st.integers(1, 65_535))
rounds = st.builds(Round, numbers, numbers, numbers, st.none() | endpoints)
exits = st.builds(Exited, workers, st.integers(-(2**31), 2**31 - 1), st.none() | names, st.booleans())
ranks = st.lists(numbers, min_size=1, max_size=4).map(tuple) | st.integers(1, 9).map(range).map(tuple)
pending_operations = st.builds(
    PendingOperation,
    ranks,
    texts,
    texts,
    number=generations,
    index=st.none() | generations,
    root=st.none() | numbers,
    obstacle=texts,
)
completed_operations = st.builds(
    CompletedOperation, ranks, texts, index=generations, number=generations, response=st.binary()
)
reports = st.builds(
    Report,
    st.sampled_from(JoinReason),
    texts,
    st.booleans(),
    st.lists(pending_operations, max_size=3).map(tuple),
    st.lists(completed_operations, max_size=3).map(tuple),
    st.integers(-1, 2**62),
    generations,
    st.booleans(),
    generations,
)
decisions = st.builds(
    RecoveryDecision,
    st.sampled_from(Action),
    st.lists(numbers, max_size=4).map(tuple),
    st.lists(st.builds(Done, ranks, generations, texts, st.binary()), max_size=3).map(tuple),
    st.booleans(),
    texts,
)
notices: st.SearchStrategy[Notification] = st.one_of(
    st.builds(
        Published,
        generations,
        st.lists(st.tuples(workers, assignments), max_size=3).map(tuple),
        st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
        decisions,
    ),
    st.builds(Interrupt, generations, texts),
    st.builds(OfferResize, generations, generations, st.booleans(), st.booleans()),
    st.builds(Announce, generations, endpoints),
    st.builds(SequencerFailed, generations, texts),
    st.builds(Refuse, workers, texts),
    st.builds(Depart, generations, workers, numbers),
)
begins = st.builds(
    Begin,
    job=names,
    host=names,
    server=names,
    credential=st.builds(Credential, st.binary(), st.binary(), st.binary()),
    command=st.lists(words, min_size=1, max_size=4).map(tuple),
    directory=words,
    environment=st.dictionaries(st.binary(), st.binary(), max_size=4),
    lease_seconds=seconds,
    launcher_timeout_seconds=seconds,
    start_timeout_seconds=seconds,
    address=texts,
    workers=st.builds(WorkerOptions, names, st.none() | numbers, st.booleans()),
    interface=words,
    server_timeout_seconds=st.none() | seconds,
)
orders: st.SearchStrategy[Order] = st.one_of(
    begins,
    st.builds(Launch, workers, assignments, texts, st.booleans(), st.none() | rounds),
    st.builds(Terminate, workers, seconds, texts),
    st.builds(Release),
    st.builds(Hold, st.booleans()),
    st.just(Stop()),
    st.builds(PassOn, st.integers(1, 64)),
    st.builds(Input, st.binary()),
    st.builds(Wait, st.none() | seconds),
    st.builds(AskStacks, numbers, st.booleans()),
    st.builds(GiveUp, workers, texts),
    st.builds(Examine, words, st.booleans(), st.booleans()),
    st.builds(ListAddresses, st.binary(min_size=1), names),
    st.builds(ProbePeers, st.lists(st.builds(ProbeTarget, names, endpoints), max_size=3).map(tuple)),
)
listenings = st.builds(Listening, words, endpoints, numbers, numbers)
proofs = st.builds(Proof, names, names, names, seconds)
waited_for = st.lists(st.builds(WaitedFor, numbers, seconds, numbers), max_size=3).map(tuple)
recovery_times = st.builds(RecoveryTime, numbers, seconds, seconds, seconds)
recoveries = st.lists(recovery_times, max_size=3).map(tuple)
accounts = st.builds(
    Account, workers, st.booleans(), st.booleans(), *[seconds] * 10, numbers, numbers, waited_for, recoveries
)
agent_messages: st.SearchStrategy[AgentMessage] = st.one_of(
    st.builds(Output, workers, st.sampled_from(OutputStream), st.binary()),
    st.builds(Remark, texts),
    st.builds(Alert, texts),
    st.builds(AgentFailed, texts, texts),
    st.builds(Reserved, endpoints, st.integers(0, 9)),
    st.builds(Taken),
    st.builds(Hello, texts),
    st.builds(Addresses, st.lists(listenings, max_size=3).map(tuple), st.binary(max_size=32)),
    st.builds(ProbeResults, st.lists(proofs, max_size=3).map(tuple), st.binary(max_size=32)),
    st.builds(Written, workers, generations),
    st.builds(Started, workers),
    st.builds(Examined, names),
    st.builds(Stacks, numbers, names),
    st.builds(WaitsReported, names),
    st.builds(AccountsReported, st.lists(accounts, max_size=3).map(tuple)),
)
agent_joins = st.builds(AgentJoin, texts, st.binary(), texts, numbers, numbers)
agents_admitted = st.builds(AgentAdmitted, st.sampled_from(Admission), texts)


def unframe(data: bytes) -> bytes:
    """The one message of a frame."""
    (message,) = codec.FrameReader().feed(data)
    return message
