"""Settings of tasks: how long a host may train, and what it costs to train and to grow."""

from __future__ import annotations

from dataclasses import dataclass

from esper.config.checks import make_numbers_plain, require_int, require_number


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long an episode is, and what it costs, in units of a task's score."""

    n_epochs: int = 16
    """Decisions of an episode: epochs that a host may train."""

    flop_price: float = 0.2
    """Score that one whole run of the reference host's FLOPs costs."""

    parameter_rent: float = 0.02
    """Score that it costs to hold as many added parameters as the reference host has, for a whole
    run."""

    def __post_init__(self) -> None:
        require_int("n_epochs", self.n_epochs, least=1)
        require_number("flop_price", self.flop_price, least=0.0)
        require_number("parameter_rent", self.parameter_rent, least=0.0)
        make_numbers_plain(self)
