"""Agents that come by themselves: the token, the launcher's door, and the agent that knocks there."""
