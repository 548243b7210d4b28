"""Typed calls of the rendezvous service: a worker's, to its agent, and an agent's, to the server.

Every call has a deadline. A call that finds nobody is tried again until its time is over, since an agent may still be
starting and a network may stumble; whatever else goes wrong is final and raised at once. gRPC's errors end here.
"""

from rendezvous.client.agent import AgentClient
from rendezvous.client.calls import name_socket
from rendezvous.client.worker import WorkerClient

__all__ = ["AgentClient", "WorkerClient", "name_socket"]
