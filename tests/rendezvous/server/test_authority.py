"""Who may say what: certificates of one job, shown to a real server."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import grpc
import pytest
from cryptography import x509

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client import AgentClient
from rendezvous.core.model import Host, Policy, Slot, Worker
from rendezvous.errors import CallRefusedError, UnreachableError
from rendezvous.server.authority import Authority
from rendezvous.server.server import Server
from rendezvous.wire import codec
from rendezvous.wire.orders import SERVER_NAME, Credential
from tests.rendezvous.stage import A0, B0, LOOPBACK, Stage, in_clean_loop, open_stage, run
from tests.waiting import LIMIT_SECONDS

ODD_NAMES = ["a" * 300, "é" * 300, "語" * 64, "2001:db8::1", "a b/c?d=%e#f", "a\nb", "*", "rendezvous.hvdrun", "a\0b"]
TRY_SECONDS = 1.0  # within which a handshake on loopback has failed


def assert_unheard(stage: Stage) -> None:
    assert [stage.server.state.last_heard[host] for host in "ab"] == [None, None]


@in_clean_loop
async def test_a_hosts_certificate_is_not_valid_for_another_host() -> None:
    async with open_stage() as stage, stage.agent("b", credential=stage.authority.issue_agent("a")) as agent:
        with pytest.raises(CallRefusedError, match="is not that of host 'b'"):
            await agent.report(1, [B0], [], LIMIT_SECONDS)
        with pytest.raises(CallRefusedError, match="is not that of host 'b'"):
            await anext(agent.watch())
        async with stage.agent("", credential=stage.authority.issue_agent("a")) as unplaced:
            with pytest.raises(CallRefusedError, match="is not that of host ''"):
                await anext(unplaced.watch())
        named = codec.encode_worker(B0)
        for call in (
            agent.join(pb.Joined(worker=named)),
            agent.stub.Declare(pb.Declared(worker=named)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert_unheard(stage)
        assert stage.server.state.waiting == 0


def mix(authority: Credential, keys: Credential) -> Credential:
    """A credential that trusts the authority of `authority`, and shows the certificate of `keys`."""
    return Credential(authority.authority, keys.certificate, keys.private_key)


@pytest.mark.parametrize(
    "make",
    [
        lambda _, other: other.issue_agent("a"),
        lambda ours, other: mix(ours.issue_agent("a"), other.issue_agent("a")),
        lambda ours, other: mix(other.issue_agent("a"), ours.issue_agent("a")),
        lambda ours, _: ours.issue_server(),
    ],
    ids=["another job's agent", "one that knows this job's authority", "one that believes another", "a server"],
)
@in_clean_loop
async def test_only_agents_of_this_job_can_call(
    make: Callable[[Authority, Authority], Credential],
) -> None:
    async with open_stage() as stage:
        async with stage.agent("a", credential=make(stage.authority, Authority("job"))) as agent:
            with pytest.raises(UnreachableError):
                await agent.report(1, [A0], [], TRY_SECONDS)
        assert_unheard(stage)


@pytest.mark.parametrize("host", ["a", SERVER_NAME])
@in_clean_loop
async def test_an_agents_certificate_does_not_serve(host: str) -> None:
    authority = Authority("job")
    async with Server(Policy.static(1), lambda _: None, authority.issue_agent(host)) as server:
        port = await server.open(LOOPBACK)
        client = AgentClient(f"{LOOPBACK}:{port}", "a", authority.issue_agent("a"))
        with pytest.raises(UnreachableError):
            await client.report(1, [], [], TRY_SECONDS)
        await client.close()


@pytest.mark.parametrize("speaks_tls", [True, False])
@in_clean_loop
async def test_a_caller_without_a_certificate_is_refused(*, speaks_tls: bool) -> None:
    options = (("grpc.ssl_target_name_override", SERVER_NAME),)
    async with open_stage() as stage:
        credentials = grpc.ssl_channel_credentials(stage.authority.issue_agent("a").authority)
        secure = partial(grpc.aio.secure_channel, credentials=credentials, options=options)
        async with (secure if speaks_tls else grpc.aio.insecure_channel)(stage.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await pb_grpc.RendezvousStub(channel).Report(pb.AgentReport(host="a", number=1), timeout=TRY_SECONDS)
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        assert_unheard(stage)


def test_an_old_version_of_tls_is_refused() -> None:
    async def story() -> None:
        async with open_stage() as stage:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.maximum_version = ssl.TLSVersion.TLSv1_1
            context.set_ciphers("ALL:@SECLEVEL=0")
            # By an alert, and the end of the connection, which may come before the alert is read.
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await asyncio.open_connection(LOOPBACK, stage.port, ssl=context)

    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        run(story())


@pytest.mark.parametrize("host", ODD_NAMES)
@in_clean_loop
async def test_a_host_may_have_any_name(host: str) -> None:
    worker = Worker(Slot(host, 0), 1)
    async with open_stage([Host(host, 1), Host("b", 1)]) as stage, stage.agent(host) as agent:
        await agent.report(1, [worker], [], LIMIT_SECONDS)
        assert stage.server.state.last_heard[host] is not None
        async with stage.agent("b", credential=stage.authority.issue_agent(host)) as liar:
            with pytest.raises(CallRefusedError):
                await liar.report(1, [], [], LIMIT_SECONDS)


@pytest.mark.parametrize("job", ["j" * 300, "é" * 300, "1/2/3"])
def test_a_job_may_have_any_name(job: str) -> None:
    assert _read(Authority(job).issue_agent("a").authority).subject.rfc4514_string().startswith("CN=hvdrun job ")


def test_a_certificate_is_valid_for_one_purpose_whatever_a_clock_says() -> None:
    authority = Authority("job")
    for credential, purpose in (
        (authority.issue_server(), x509.oid.ExtendedKeyUsageOID.SERVER_AUTH),
        (authority.issue_agent("a"), x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        certificate = _read(credential.certificate)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        for clock in (datetime(1970, 1, 2, tzinfo=UTC), datetime.now(UTC), datetime(2999, 1, 1, tzinfo=UTC)):
            assert certificate.not_valid_before_utc < clock < certificate.not_valid_after_utc
        certificate.verify_directly_issued_by(_read(credential.authority))


def _read(certificate: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate)


def test_an_authority_can_be_restored_from_its_key() -> None:
    made = Authority("token")
    kept = Authority("token", made.key)
    assert kept.owns(made.certificate)
    assert not Authority("token").owns(made.certificate)
    issued = x509.load_pem_x509_certificate(kept.issue_server().certificate)
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(made.certificate))
    with pytest.raises(ValueError, match="PEM"):
        Authority("token", b"nothing")


def test_no_two_agents_share_a_key() -> None:
    authority = Authority("job")
    assert authority.issue_agent("a").private_key != authority.issue_agent("a").private_key
