"""The job's own certificate authority: mutual TLS without set-up, created for one job.

The authority's key never leaves the launcher's memory. The server's certificate is valid for serving only, and has a
name of its own. An agent's certificate is valid for calling only and names its host, so that one host cannot act for
another.

The token with which agents join has another authority, whose key is kept in a file. It issues the certificate of the
launcher's listener, and none for agents.
"""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rendezvous.wire.orders import SERVER_NAME, Credential, agent_identity

# The certificates never expire: the clock of a host may be wrong by years, and no certificate is used after the job.
# RFC 5280 names this end for a certificate that has no end.
_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_COMMON_NAME_LIMIT = 64  # bytes: X.520's upper bound; the alternative name has the host in full


class Authority:
    """Issues the certificates of one job.

    Args:
        job: the job's name.
        key: the key of an existing authority, in PEM; without it a new key is generated.

    Raises:
        ValueError: it is not a key.
    """

    def __init__(self, job: str, key: bytes | None = None) -> None:
        if key is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
        else:
            self._key = _decode_key(key)
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

    @property
    def certificate(self) -> bytes:
        """The certificate with which others verify what this authority has issued; PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The authority's private key; PEM."""
        return _encode_key(self._key)

    def owns(self, certificate: bytes) -> bool:
        """The certificate, in PEM, has this authority's key, even if it was issued before the present certificate.

        Raises:
            ValueError: it is not a certificate.
        """
        return x509.load_pem_x509_certificate(certificate).public_key() == self._key.public_key()

    def issue_server(self) -> Credential:
        """The rendezvous server's credential."""
        return self._issue(SERVER_NAME, SERVER_NAME, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_agent(self, host: str, number: int = 1) -> Credential:
        """The credential of one host's agent; `number` is what `Server.number_agent` returns when it is started."""
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
            authority=self.certificate,
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            private_key=_encode_key(key),
        )


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _decode_key(text: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(text, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("another kind of key")  # noqa: TRY004 - the file is wrong, not the argument's type
    return key


def _name(common_name: str) -> x509.Name:
    shortened = common_name.encode()[:_COMMON_NAME_LIMIT].decode(errors="ignore")  # the last character may be cut
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, shortened)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    begin, end = _ALWAYS
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
