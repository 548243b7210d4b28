"""What a prober and a listener say to each other, so that each knows whom it has met.

An address alone proves nothing: 172.17.0.1 (docker0) is there on every host, and answers on oneself. So the prober asks
for one host at one address and port, and shows that it knows the survey's token; only the listener that is just there
answers, and shows the same. Neither side reveals the token, and no answer can be made for another question.
"""

import hmac
import secrets
from dataclasses import dataclass

from rendezvous.core.model import Endpoint

NONCE_BYTES = 16
_MAC_BYTES = 32
QUESTION_BYTES = NONCE_BYTES + _MAC_BYTES
ANSWER_BYTES = _MAC_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """Who listens where, in one survey."""

    token: bytes
    host: str
    endpoint: Endpoint

    def ask(self) -> bytes:
        """The question for this one, which is never the same twice."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._sign(b"question", nonce)

    def answer(self, question: bytes) -> bytes | None:
        """What this one says to a question; nothing where the question is for another, or of a stranger."""
        nonce, signature = question[:NONCE_BYTES], question[NONCE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(b"question", nonce)):
            return None
        return self._sign(b"answer", nonce)

    def has_answered(self, question: bytes, answer: bytes) -> bool:
        """The answer to this question is this one's own."""
        return hmac.compare_digest(answer, self._sign(b"answer", question[:NONCE_BYTES]))

    def _sign(self, role: bytes, nonce: bytes) -> bytes:
        words = (role, self.host.encode(errors="surrogateescape"), str(self.endpoint).encode(), nonce)
        text = b"".join(len(word).to_bytes(4, "big") + word for word in words)
        return hmac.digest(self.token, text, "sha256")
