"""Typed calls of the rendezvous service: of a worker to its agent, and of an agent to the server.

Every call has a deadline. A call that cannot be delivered is retried until its time is over, since an agent may still
be starting and a network may fail for a moment. Any other error is raised immediately. No error of gRPC leaves this
package.
"""

from rendezvous.client.agent import AgentClient
from rendezvous.client.calls import Pauses, name_socket
from rendezvous.client.worker import WorkerClient

__all__ = ["AgentClient", "Pauses", "WorkerClient", "name_socket"]
