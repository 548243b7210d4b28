"""Transports: each starts the agent of one host, and carries orders and output."""
