"""What the ssh configuration of a host allows: algorithms, sizes of keys, and ways to log in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import paramiko

from hvdrun.transport.ssh.certificates import SUFFIX
from hvdrun.transport.ssh.config import Settings, first
from hvdrun.transport.ssh.ssh_errors import SshPolicyError

RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a key of kind ssh-rsa may sign
_ALGORITHMS = (
    "CASignatureAlgorithms",
    "Ciphers",
    "HostKeyAlgorithms",
    "KexAlgorithms",
    "MACs",
    "PubkeyAcceptedAlgorithms",
)
_OLD_NAMES = {"pubkeyacceptedalgorithms": "pubkeyacceptedkeytypes"}  # before OpenSSH 8.5
_NO = frozenset({"no", "false"})
_KEYS_ONLY = "hvdrun logs in with keys only"


@dataclass(frozen=True, slots=True)
class SshPolicy:
    """What the configuration of one host allows.

    algorithms: the option -> what it allows, the best first. ssh prints its defaults, too; an option that is not there
    (another version of ssh, no ssh) allows all.
    smallest_rsa_bits: shorter RSA keys are refused, of the host and of the user.
    refuses_keys: the setting by which nobody may log in with a key; None if there is none.
    """

    host: str
    algorithms: Mapping[str, Sequence[str]]
    smallest_rsa_bits: int
    refuses_keys: str | None

    def choose(self, option: str, known: Iterable[str]) -> tuple[str, ...]:
        """The allowed ones of these algorithms, the best first.

        Raises:
            SshPolicyError: there are none.
        """
        known = tuple(known)
        chosen = tuple(name for name in self.algorithms.get(option, known) if name in known)
        if not chosen:
            given = ",".join(self.algorithms[option])
            raise SshPolicyError(
                self.host, f"has only {option} that hvdrun does not know ({given})", f"add one of {','.join(known)}"
            )
        return chosen

    def allows(self, option: str, *names: str) -> bool:
        """One of these algorithms is allowed."""
        return option not in self.algorithms or any(name in self.algorithms[option] for name in names)

    def check_login(self) -> None:
        """Check that the user may log in with a key.

        Raises:
            SshPolicyError: the configuration forbids it.
        """
        if self.refuses_keys is not None:
            reason = f"forbids logins with keys ({self.refuses_keys}), and {_KEYS_ONLY}"
            raise SshPolicyError(self.host, reason, "allow them for this host")

    def check_host_key(self, key: paramiko.PKey) -> None:
        """Check the size of a host's key.

        Raises:
            SshPolicyError: it is too small.
        """
        if (reason := self._find_size(key)) is not None:
            raise SshPolicyError(self.host, f"refuses the host's RSA key: {reason}", "give the host a larger key")

    def find_refusal(self, key: paramiko.PKey) -> str | None:
        """Why a key of the user may not be offered; None if it may."""
        if key.public_blob is None:
            kind = key.get_name()
        else:
            kind = key.public_blob.key_type
        suffix = SUFFIX if kind.endswith(SUFFIX) else ""
        if kind.startswith("ssh-rsa"):
            names = [f"{name}{suffix}" for name in RSA]
        else:
            names = [kind]
        if not self.allows("PubkeyAcceptedAlgorithms", *names):
            return f"{kind}: not one of the configured PubkeyAcceptedAlgorithms"
        return self._find_size(key)

    def order_rsa(self) -> tuple[str, ...]:
        """How an RSA key of the user may sign, the best first."""
        allowed = self.algorithms.get("PubkeyAcceptedAlgorithms", RSA)
        return tuple(dict.fromkeys(name.removesuffix(SUFFIX) for name in allowed if name.removesuffix(SUFFIX) in RSA))

    def _find_size(self, key: paramiko.PKey) -> str | None:
        bits = key.get_bits()
        if not key.get_name().startswith("ssh-rsa") or not 0 < bits < self.smallest_rsa_bits:  # 0: unknown
            return None
        return f"it has {bits} bits, and RequiredRSASize is {self.smallest_rsa_bits}"


def read_policy(host: str, settings: Settings) -> SshPolicy:
    """The policy in the configuration of a host."""
    algorithms = {}
    for option in _ALGORITHMS:
        keyword = option.lower()
        value = first(settings, keyword) or first(settings, _OLD_NAMES.get(keyword, keyword))
        if value is not None:
            algorithms[option] = tuple(value.split(","))
    preferred = first(settings, "preferredauthentications")
    refuses_keys = None
    if first(settings, "pubkeyauthentication") in _NO:
        refuses_keys = "PubkeyAuthentication no"
    elif preferred is not None and "publickey" not in preferred.split(","):
        refuses_keys = f"PreferredAuthentications {preferred}"
    return SshPolicy(host, algorithms, int(first(settings, "requiredrsasize") or 0), refuses_keys)
