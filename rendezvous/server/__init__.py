"""What serves calls: the rendezvous server in hvdrun, the relay in each agent, and what both need."""
