"""What the parties of a job show each other; made by the job's authority, which only the launcher has."""

from dataclasses import dataclass, field

SERVER_NAME = "rendezvous.hvdrun"


@dataclass(frozen=True, slots=True)
class Credential:
    """What one party of a job shows, and whom it trusts; PEM."""

    authority: bytes
    certificate: bytes
    private_key: bytes = field(repr=False)


def agent_identity(host: str, number: int = 1) -> str:
    """How a certificate names the agent of a host: a URI, hex-coded, since a host's name may hold any character.

    number: which agent of this host, counted from 1: one that was cut off and replaced may come back.
    """
    name = f"hvdrun:agent:{host.encode().hex()}"
    return name if number == 1 else f"{name}:{number}"
