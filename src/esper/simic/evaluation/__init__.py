"""Judging controllers: one episode of each host, the same hosts for all."""

from esper.simic.evaluation.running import EpisodeResults, run_episodes

__all__ = ["EpisodeResults", "run_episodes"]
