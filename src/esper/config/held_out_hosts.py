"""Which numbers of the hosts that are drawn for evaluation belong to whom.

Hosts that were scored for one purpose are not met again for another: what a run is chosen by, and
what a task is chosen by, says nothing about the hosts that claims are made on.
"""

from __future__ import annotations

from dataclasses import dataclass

from esper.errors import ConfigError


@dataclass(frozen=True)
class HostNumbers:
    """A range of numbers of hosts, and whose it is."""

    owner: str
    first: int
    end: int
    """The number after the last."""

    def take(self, first: int | None, n_hosts: int) -> range:
        """Return so many hosts from the first on, or from another one on.

        Raises:
            ConfigError: If some of them belong to somebody else.
        """
        start = self.first if first is None else first
        if not self.first <= start <= start + n_hosts <= self.end:
            raise ConfigError(
                f"seed is {start} with {n_hosts} hosts; hosts of {self.owner} are {self.first} to "
                f"{self.end - 1}, and others are kept for other uses."
            )
        return range(start, start + n_hosts)


MOST_TRIAL_HOSTS = 50_000
"""Hosts of the comparison that ends a training run, which begins with number 0. Where hosts learn
several tasks it has a few more, all of them far below 100,000."""
EVALUATION_HOSTS = HostNumbers("evaluations and comparisons", 100_000, 200_000)
HEADROOM_HOSTS = HostNumbers("headroom", 200_000, 300_000)
