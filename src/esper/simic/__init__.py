"""Reinforcement learning: the agent, and collecting episodes for it."""
