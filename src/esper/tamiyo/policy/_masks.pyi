def fill(
    plan: int,
    batch: int,
    codes: int,
    stage: int,
    age: int,
    at_rest: int,
    choices: int,
    slot_by_op: int,
    /,
) -> int: ...
