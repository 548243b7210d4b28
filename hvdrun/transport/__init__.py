"""How an agent is started on a host, and how orders and output travel."""
