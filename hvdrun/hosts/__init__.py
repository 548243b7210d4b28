"""From a list of hosts to agents that wait for orders: discovery, connections, network routes.

Hosts come in, agents with a route to the rendezvous server go out.
"""
