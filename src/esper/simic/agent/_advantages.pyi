def estimate(
    rewards: int,
    values: int,
    next_values: int,
    terminated: int,
    truncated: int,
    advantages: int,
    returns: int,
    n_envs: int,
    n_steps: int,
    gamma: float,
    gae_lambda: float,
    form: int,
    /,
) -> None: ...
def variants() -> list[str]: ...
def choose(index: int, /) -> None: ...
