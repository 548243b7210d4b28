"""Proto messages <-> the values the rest of the project speaks in; nothing else knows how they look on the wire.

`WireError` is raised for a message that lacks what it must have.
"""

from rendezvous.wire.admission_codec import (
    decode_agent_admitted,
    decode_agent_join,
    encode_agent_admitted,
    encode_agent_join,
)
from rendezvous.wire.frames import MAX_FRAME_BYTES, FrameReader, frame
from rendezvous.wire.membership import (
    decode_assignment,
    decode_endpoint,
    decode_exited,
    decode_join,
    decode_notice,
    decode_worker,
    encode_assignment,
    encode_endpoint,
    encode_exited,
    encode_notice,
    encode_worker,
)
from rendezvous.wire.order_codec import decode_order, encode_order
from rendezvous.wire.reports import decode_report, decode_verdict, encode_report, encode_verdict
from rendezvous.wire.tellings import decode_telling, encode_telling

__all__ = [
    "MAX_FRAME_BYTES",
    "FrameReader",
    "decode_agent_admitted",
    "decode_agent_join",
    "decode_assignment",
    "decode_endpoint",
    "decode_exited",
    "decode_join",
    "decode_notice",
    "decode_order",
    "decode_report",
    "decode_telling",
    "decode_verdict",
    "decode_worker",
    "encode_agent_admitted",
    "encode_agent_join",
    "encode_assignment",
    "encode_endpoint",
    "encode_exited",
    "encode_notice",
    "encode_order",
    "encode_report",
    "encode_telling",
    "encode_verdict",
    "encode_worker",
    "frame",
]
