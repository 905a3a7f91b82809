"""Numbers are formatted for people."""

from esper.config.memory import amount_of
from esper.formatting import duration, number, share


def test_durations_sizes_shares_and_points_are_formatted() -> None:
    assert [duration(s) for s in (9.4, 412, 7511)] == ["9 s", "6 min 52 s", "2 h 5 min"]
    assert [amount_of(n) for n in (612e6, 1.24e9)] == ["612 MB", "1.2 GB"]
    assert [share(x) for x in (0, 0.004, 0.5, 0.996, 1.0)] == [
        "0%",
        "less than 1%",
        "50%",
        "more than 99%",
        "100%",
    ]


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    assert [number(x) for x in (-0.0004, -0.0006, None)] == ["0.000", "-0.001", "-"]
