"""Collecting episodes for the agent to learn from."""

from esper.simic.rollout.collector import CollectedEpisodes, VectorCollector

__all__ = ["CollectedEpisodes", "VectorCollector"]
