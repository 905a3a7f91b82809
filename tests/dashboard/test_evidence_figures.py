"""The Pareto chart shows every arm at every price, and their front."""

import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.dashboard.figures import MARKERS, pareto_front, plot_pareto, save_evidence
from esper.errors import ConfigError, EvidenceError, StorageError
from esper.results.arms import Kind
from esper.results.evidence import Evidence
from esper.statistics import nested_interval
from tests.evidence.examples import make_arm, make_evidence, make_hosts

SMALL = st.integers(0, 4).map(float)


@given(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=8))
def test_the_front_has_all_points_that_are_not_dominated(
    points: list[tuple[float, float]],
) -> None:
    def is_dominated(own: tuple[float, float]) -> bool:
        return any(
            cost <= own[0] and gain >= own[1] and (cost, gain) != own for cost, gain in points
        )

    front = pareto_front([cost for cost, _ in points], [gain for _, gain in points])
    assert [points[index] for index in front] == sorted(
        {point for point in points if not is_dominated(point)}
    )
    assert all(points.index(points[index]) == index for index in front)


def example(price: float = 0.2) -> Evidence:
    return make_evidence(
        make_arm("learned", make_hosts(3, 20), kind="learned", flops=0.4 - price / 2),
        make_arm("static", make_hosts(1, 20, gain=0.02), kind="tuned", flops=0.5),
        make_arm("no-growth", make_hosts(1, 20, gain=-0.1), flops=0.6, parameters=500.0),
        price=price,
    )


def lines(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines
    }


def test_every_arm_is_drawn_at_its_means() -> None:
    pytest.importorskip("matplotlib")
    entries = [example(0.4), example(0.2)]
    axes = plot_pareto(entries).axes
    against_flops, against_parameters = map(lines, axes)
    for name in ("learned", "static", "no-growth"):
        cheap, dear = entries[1].arm(name), entries[0].arm(name)
        assert against_flops[name][0] == pytest.approx([cheap.flops.mean(), dear.flops.mean()])
        assert against_flops[name][1] == pytest.approx([cheap.score.mean()] * 2)
        assert against_parameters[name][0] == pytest.approx([dear.parameters.mean()] * 2)
    bars = [bar.lines[2][1].get_segments()[0][:, 1] for bar in axes[0].containers]
    expected = nested_interval(entries[1].own.score)
    assert bars[0] == pytest.approx([expected.low, expected.high])


def test_the_front_runs_from_the_cheapest_arm_to_the_best() -> None:
    pytest.importorskip("matplotlib")
    axis = plot_pareto([example()]).axes[0]
    (front,) = (value for name, value in lines(axis).items() if name == "Pareto front")
    own, static = example().own, example().arm("static")
    assert front[0][:-1] == pytest.approx([0.3, 0.3, 0.5])
    assert front[1][1:] == pytest.approx([own.score.mean()] + [static.score.mean()] * 2)


def test_arms_differ_in_marker_or_colour_and_are_labelled() -> None:
    pytest.importorskip("matplotlib")
    kinds = [kind for kind in get_args(Kind) for _ in range(5)]
    arms = [make_arm(f"a{i}", make_hosts(1, 10), kind=kind) for i, kind in enumerate(kinds)]
    figure = plot_pareto([make_evidence(*arms)])
    drawn = [line for line in figure.axes[0].lines if line.get_label().startswith("a")]
    looks = {(line.get_marker(), line.get_color()) for line in drawn}
    assert len(looks) == len(arms)
    assert set(MARKERS) == set(get_args(Kind))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:-1] == [arm.label for arm in arms]


def test_results_are_saved_with_their_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    saved = save_evidence([example()], tmp_path / "new")
    assert [path.name for path in saved] == ["evaluation.json", "evaluation.md", "pareto.png"]
    assert saved[-1].read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        save_evidence([example()], tmp_path / "file")
    with pytest.raises(EvidenceError, match="no entries"):
        plot_pareto([])


def test_missing_matplotlib_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'pip install "esper-lite\[plot\]"'):
        plot_pareto([example()])
