"""Observations are named, finite and of unit scale, whatever happens to a host."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.errors import UnknownFeatureError
from esper.lifecycle.factored_actions import ALPHA_CURVES, STYLES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.observations import (
    HOST_FEATURES,
    SLOT_FEATURES,
    TENSOR_KINDS,
    HostFacts,
    ObservationLayout,
    SlotFacts,
)

CONFIG = SlotConfig(("early", "late"))
LAYOUT = ObservationLayout(CONFIG)
N_BLUEPRINTS = len(CONFIG.blueprints)

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, width=64)
COUNTS = st.integers(0, 2**50)
RANGES: dict[str, st.SearchStrategy[Any]] = {
    "stage": st.integers(0, len(Stage) - 1),
    "curve": st.integers(0, len(ALPHA_CURVES) - 1),
    "style": st.integers(0, len(STYLES) - 1),
    "blueprint": st.integers(-1, N_BLUEPRINTS - 1),
    "last_op": st.integers(-1, len(Op) - 1),
    "n_epochs": st.integers(1, 2**40),
    "kind": st.integers(0, len(TENSOR_KINDS) - 1),
}


def make_facts(about: type[Any], shape: tuple[int, ...], **given: Any) -> Any:
    """Return facts that are zero except for those given."""
    arrays: dict[str, np.ndarray] = {}
    for field in dataclasses.fields(about):
        dtype = {"Integers": np.int64, "Floats": np.float64, "Flags": np.bool_}[str(field.type)]
        arrays[field.name] = np.full(shape, given.get(field.name, 0), dtype)
    return about(**arrays)


def encode(host: dict[str, Any], slot: dict[str, Any]) -> np.ndarray:
    host = {"n_epochs": 16, "n_classes": 10, "last_op": -1, **host}
    hosts = make_facts(HostFacts, (1,), **host)
    return LAYOUT.encode(hosts, make_facts(SlotFacts, (1, 2), **{"blueprint": -1, **slot}))


@st.composite
def facts(draw: st.DrawFn, kind: type[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        by_type = {"Integers": COUNTS, "Floats": ANY_FLOAT, "Flags": st.booleans()}
        values[field.name] = draw(RANGES.get(field.name, by_type[str(field.type)]))
    return values


@settings(deadline=None)
@given(host=facts(HostFacts), slot=facts(SlotFacts))
def test_observations_are_always_within_their_space(
    host: dict[str, Any], slot: dict[str, Any]
) -> None:
    observation = encode(host, slot)
    assert observation.shape == (1, LAYOUT.size)
    assert observation.dtype == np.float32
    assert np.isfinite(observation).all()
    assert (observation >= LAYOUT.low).all()
    assert (observation <= 1.0).all()


INF = float("inf")
HOST_EXTREMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "progress": ({"epoch": 0}, {"epoch": 16}),
    "train_loss": ({"train_loss": 0.0}, {"train_loss": INF}),
    "validation_loss": ({"validation_loss": 0.0}, {"validation_loss": float("nan")}),
    "loss_gap": ({"train_loss": INF}, {"validation_loss": INF}),
    "loss_trend": ({"validation_loss": INF}, {"previous_validation_loss": INF}),
    "score": ({"score": -7.0}, {"score": 7.0}),
    "score_trend": ({"previous_score": INF}, {"previous_score": -INF}),
    "score_trend_slow": ({"older_score": INF}, {"older_score": -INF}),
    "below_best": ({"best_score": INF}, {}),
    "gradient_norm": ({"gradient_norm": 0.0}, {"gradient_norm": INF}),
    "gradient_trend": (
        {"gradient_norm": 0.0, "previous_gradient_norm": 1.0},
        {"gradient_norm": 1.0, "previous_gradient_norm": 0.0},
    ),
    "flops_used": ({}, {"flops_used": INF}),
    "was_restored": ({}, {"was_restored": True}),
    "was_refused": ({}, {"was_refused": True}),
    **{f"did_{op.name.lower()}": ({}, {"last_op": int(op)}) for op in Op},
    "task_classes": ({"n_classes": 1}, {"n_classes": 10**6}),
    "task_samples": ({"n_samples": 1}, {"n_samples": 10**9}),
    "task_learning_rate": ({"learning_rate": 1e-9}, {"learning_rate": 1e9}),
    "task_host_size": ({"n_parameters": 1}, {"n_parameters": 10**12}),
    "task_epochs": ({"n_epochs": 1}, {"n_epochs": 10**6}),
    "task_flop_price": ({}, {"flop_price": INF}),
}
SLOT_EXTREMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{
        f"is_{stage.name.lower()}": ({"stage": (stage + 1) % 9}, {"stage": int(stage)})
        for stage in Stage
    },
    "age": ({}, {"age_epochs": 99}),
    "stage_age": ({}, {"stage_epochs": 10**9}),
    "alpha": ({}, {"alpha": 1.0}),
    "alpha_target": ({}, {"alpha_target": 1.0}),
    "alpha_at_rest": ({}, {"alpha_at_rest": True}),
    "ramp_left": ({}, {"ramp_epochs_left": 8}),
    "curve": ({}, {"curve": 4}),
    **{
        f"style_{style.name.lower()}": ({"blueprint": -1}, {"blueprint": 0, "style": index})
        for index, style in enumerate(STYLES)
    },
    "contribution": ({"contribution": -INF}, {"contribution": INF}),
    "is_measured": ({}, {"is_measured": True}),
    "parameter_share": ({}, {"parameters": 10**15}),
    "gradient_health": ({"blueprint": 0}, {"blueprint": 0, "gradient_norm": INF}),
    **{
        f"on_{kind}": ({"kind": (number + 1) % 3}, {"kind": number})
        for number, kind in enumerate(TENSOR_KINDS)
    },
    "width": ({"width": 1}, {"width": 10**6}),
    "hidden": ({"hidden": 0}, {"hidden": 4096}),
    "blueprint": ({}, {"blueprint": N_BLUEPRINTS - 1}),
}


@pytest.mark.parametrize("name", [name for name in HOST_FEATURES if name in HOST_EXTREMES])
def test_each_host_feature_reaches_both_limits(name: str) -> None:
    low, high = HOST_EXTREMES[name]
    greatest = 0.0 if name == "below_best" else 1.0
    assert LAYOUT.host(encode(low, {}), name)[0] == pytest.approx(HOST_FEATURES[name][0], abs=1e-6)
    assert LAYOUT.host(encode(high, {}), name)[0] == pytest.approx(greatest, abs=1e-6)


def test_only_derived_features_have_no_limits_of_their_own() -> None:
    assert HOST_FEATURES.keys() - HOST_EXTREMES.keys() == {"parameters_added", "task_slots"}
    assert SLOT_FEATURES.keys() - SLOT_EXTREMES.keys() == {"position"}


@pytest.mark.parametrize("name", [name for name in SLOT_FEATURES if name in SLOT_EXTREMES])
def test_each_slot_feature_reaches_both_limits(name: str) -> None:
    low, high = SLOT_EXTREMES[name]
    least = LAYOUT.slot(encode({"gradient_norm": 1.0}, low), name)[0, 1]
    greatest = LAYOUT.slot(encode({"gradient_norm": 1.0}, high), name)[0, 1]
    assert least == pytest.approx(SLOT_FEATURES[name][0], abs=1e-6)
    assert greatest == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("n_slots", "expected", "task_slots"),
    [(1, [0.0], -1.0), (2, [0.0, 1.0], -2 / 3), (5, [0.0, 0.25, 0.5, 0.75, 1.0], None), (64, 0, 1)],
)
def test_slots_have_positions_and_are_counted(
    n_slots: int, expected: Any, task_slots: float | None
) -> None:
    layout = ObservationLayout(SlotConfig(tuple(f"blocks.{index}" for index in range(n_slots))))
    hosts = make_facts(HostFacts, (3,), n_epochs=16, n_classes=10, last_op=-1)
    observations = layout.encode(hosts, make_facts(SlotFacts, (3, n_slots), blueprint=-1))
    if expected:
        assert layout.slot(observations, "position").tolist() == [pytest.approx(expected)] * 3
    if task_slots is not None:
        assert layout.host(observations, "task_slots").tolist() == [pytest.approx(task_slots)] * 3


def test_slot_sizes_are_on_a_log_scale() -> None:
    observation = encode({}, {"kind": 2, "width": 64, "hidden": [[8, 16]]})
    assert LAYOUT.slot(observation, "width")[0] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert LAYOUT.slot(observation, "hidden")[0] == pytest.approx([-1 / 2, -1 / 3])
    assert LAYOUT.slot(observation, "on_vector")[0].tolist() == [1.0, 1.0]


def test_added_parameters_are_summed_over_slots() -> None:
    observation = encode({"n_parameters": 100}, {"parameters": 50, "blueprint": 3})
    assert LAYOUT.host(observation, "parameters_added")[0] == pytest.approx(0.5)
    assert LAYOUT.slot(observation, "parameter_share")[0] == pytest.approx([1 / 3, 1 / 3])


def test_a_worked_example() -> None:
    # Ten classes: guessing costs log 10. Half of that is 0.5 / 1.5, a fall of a tenth is 1 / 2.
    guess = np.log(10.0)
    host = {
        "epoch": 4,
        "train_loss": 0.25 * guess,
        "validation_loss": 0.5 * guess,
        "previous_validation_loss": 0.6 * guess,
        "score": 0.7,
        "previous_score": 0.65,
        "older_score": 0.85,
        "best_score": 0.75,
        "gradient_norm": 0.1,
        "learning_rate": 1e-2,
    }
    observation = encode(host, {"stage": 3, "stage_epochs": 1, "alpha": 0.5, "contribution": 0.1})
    expected = {
        "progress": 0.25,
        "train_loss": 0.2,
        "validation_loss": 1 / 3,
        "loss_gap": 0.2,
        "loss_trend": 0.5,
        "score_trend": 0.5,
        "score_trend_slow": -0.75,
        "below_best": -0.5,
        "gradient_norm": 0.0,
        "task_learning_rate": 0.2,
    }
    for name, value in expected.items():
        assert LAYOUT.host(observation, name)[0] == pytest.approx(value, abs=1e-6), name
    assert LAYOUT.slot(observation, "stage_age")[0, 0] == pytest.approx(0.25)
    assert LAYOUT.slot(observation, "contribution")[0, 0] == pytest.approx(2 / 3)


def test_stages_and_blueprints_can_be_decoded() -> None:
    for stage in Stage:
        for blueprint in range(-1, N_BLUEPRINTS):
            observation = encode({}, {"stage": int(stage), "blueprint": blueprint})
            assert LAYOUT.stages(observation).tolist() == [[stage, stage]]
            assert LAYOUT.blueprints(observation).tolist() == [[blueprint, blueprint]]
            for column, count in LAYOUT.categories.items():
                assert round(float(observation[0, column]) * count) == blueprint + 1


def test_names_columns_and_table_agree() -> None:
    observation = np.arange(LAYOUT.size, dtype=np.float32)[None]
    assert len(LAYOUT.names) == len(set(LAYOUT.names)) == LAYOUT.size == len(LAYOUT.low)
    for column, name in enumerate(LAYOUT.names):
        slot, _, feature = name.rpartition("/")
        if slot:
            value = LAYOUT.slot(observation, feature)[0, CONFIG.slot_index(slot)]
        else:
            value = LAYOUT.host(observation, name)[0]
        assert value == column
    rows = LAYOUT.table().splitlines()
    assert len(rows) == 2 + len(HOST_FEATURES) + len(SLOT_FEATURES)
    with pytest.raises(UnknownFeatureError, match="'score_trend'"):
        LAYOUT.host(observation, "score_trnd")
