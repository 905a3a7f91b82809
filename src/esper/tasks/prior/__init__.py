"""The task ``prior``: a distribution over problems and hosts like those that users have."""

from esper.tasks.prior.family import KINDS, draw_prior, make_prior

__all__ = ["KINDS", "draw_prior", "make_prior"]
