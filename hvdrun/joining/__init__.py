"""Agents that join a job by themselves: the token, the launcher's listener, and the agent that connects to it."""
