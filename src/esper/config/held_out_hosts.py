"""Ranges of held-out host numbers, one for each purpose.

A host scored for one purpose is never used for another: the hosts that select a controller or a
task must not be those that claims are made on.
"""

from __future__ import annotations

from dataclasses import dataclass

from esper.errors import ConfigError


@dataclass(frozen=True)
class HostNumbers:
    """A range of host numbers and its purpose."""

    purpose: str
    first: int
    end: int
    """One past the last number."""

    def take(self, first: int | None, n_hosts: int) -> range:
        """Return the numbers of ``n_hosts`` hosts, starting at ``first`` or at the range's start.

        Raises:
            ConfigError: If they leave the range.
        """
        start = self.first if first is None else first
        if not self.first <= start <= start + n_hosts <= self.end:
            raise ConfigError(
                f"seed is {start} with {n_hosts} hosts; {self.purpose} must use hosts "
                f"{self.first} to {self.end - 1}."
            )
        return range(start, start + n_hosts)


MAX_TRIAL_HOSTS = 50_000
"""Maximum hosts in the comparison at the end of a training run, which start at number 0."""
EVALUATION_HOSTS = HostNumbers("evaluations and comparisons", 100_000, 200_000)
HEADROOM_HOSTS = HostNumbers("headroom", 200_000, 300_000)
