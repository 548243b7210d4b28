"""The job's own certificate authority: mutual TLS without any set-up, made for one job and forgotten with it.

The authority's key never leaves the launcher's memory. The server's certificate is for serving only and carries a name
that no agent's has; an agent's is for calling only and names its host, so that one host cannot speak for another.
"""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rendezvous.credentials import SERVER_NAME, Credential, agent_identity

_CLOCK_SKEW = timedelta(days=1)  # hosts' clocks differ; the authority lives and dies with the job anyway
_LIFETIME = timedelta(days=3650)
_COMMON_NAME_LIMIT = 64  # bytes: X.520's upper bound; the host stands in full in the alternative name


class Authority:
    """Issues the certificates of one job."""

    def __init__(self, job: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"hvdrun job {job}")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def issue_server(self) -> Credential:
        """The rendezvous server's credential."""
        return self._issue(SERVER_NAME, SERVER_NAME, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_agent(self, host: str, number: int = 1) -> Credential:
        """The credential of one host's agent; `number` is what `Server.number_agent` says when it is started."""
        return self._issue(f"agent {host}", agent_identity(host, number), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, common_name: str, identity: str, purpose: x509.ObjectIdentifier) -> Credential:
        key = ec.generate_private_key(ec.SECP256R1())
        name: x509.GeneralName = (
            x509.DNSName(identity) if identity == SERVER_NAME else x509.UniformResourceIdentifier(identity)
        )
        certificate = (
            _builder(_name(common_name), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Credential(
            authority=self._certificate.public_bytes(serialization.Encoding.PEM),
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            private_key=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def _name(common_name: str) -> x509.Name:
    shortened = common_name.encode()[:_COMMON_NAME_LIMIT].decode(errors="ignore")  # the last character may be cut
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, shortened)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )
