"""The task ``prior``: a distribution over problems and hosts like those that users have."""

from esper.tasks.prior.family import HOST_CHOICES, KINDS, draw_prior, make_prior

__all__ = ["HOST_CHOICES", "KINDS", "draw_prior", "make_prior"]
