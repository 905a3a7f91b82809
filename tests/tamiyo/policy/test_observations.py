"""Observations are named, finite and of unit scale, whatever happens to a host."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.errors import UnknownFeatureError
from esper.lifecycle.factored_actions import ALPHA_CURVES, STYLES, Op
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.observations import (
    HISTORY,
    HOST_FEATURES,
    MAX_BATCHES,
    SLOT_FEATURES,
    TENSOR_KINDS,
    HostFacts,
    ObservationLayout,
    from_log_scale,
    log_scale,
    squash,
    unsquash,
)
from esper.tasks.prior import family

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
    "kind": st.integers(-1, len(TENSOR_KINDS) - 1),
}
HISTORIES = ("train_losses", "validation_losses", "scores")


def make_facts(about: type[Any], shape: tuple[int, ...], **given: Any) -> Any:
    """Return facts that are zero except for those given."""
    arrays: dict[str, np.ndarray] = {}
    for field in dataclasses.fields(about):
        dtype = {"Integers": np.int64, "Floats": np.float64, "Flags": np.bool_}[str(field.type)]
        size = (*shape, HISTORY) if field.name in HISTORIES else shape
        arrays[field.name] = np.full(size, given.get(field.name, 0), dtype)
    return about(**arrays)


def encode(host: dict[str, Any], slot: dict[str, Any]) -> np.ndarray:
    host = {"n_epochs": 16, "first_loss": 1.0, "last_op": -1, **host}
    hosts = make_facts(HostFacts, (1,), **host)
    return LAYOUT.encode(hosts, make_facts(SlotArrays, (1, 2), **{"blueprint": -1, **slot}))


@st.composite
def facts(draw: st.DrawFn, kind: type[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        by_type = {"Integers": COUNTS, "Floats": ANY_FLOAT, "Flags": st.booleans()}
        drawn = RANGES.get(field.name, by_type[str(field.type)])
        if field.name in HISTORIES:
            drawn = st.lists(drawn, min_size=HISTORY, max_size=HISTORY)
        values[field.name] = draw(drawn)
    return values


@settings(deadline=None)
@given(host=facts(HostFacts), slot=facts(SlotArrays))
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
NAN = float("nan")


def history(*last: float) -> list[float]:
    """Return a history that ends with these values."""
    return [NAN] * (HISTORY - len(last)) + list(last)


HOST_EXTREMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "progress": ({"epoch": 0}, {"epoch": 16}),
    "epochs_left": ({"epoch": 16}, {"n_epochs": 1000}),
    "train_loss": ({"train_losses": -INF}, {"train_losses": INF}),
    "validation_loss": ({"validation_losses": -INF}, {"validation_losses": INF}),
    "loss_gap": (
        {"train_losses": INF, "validation_losses": 1.0},
        {"train_losses": -INF, "validation_losses": 1.0},
    ),
    "loss_over_best": (
        {"validation_losses": 1.0, "best_loss": 1.0},
        {"validation_losses": INF, "best_loss": 1.0},
    ),
    "loss_slope": (
        {"validation_losses": history(INF, 1.0)},
        {"validation_losses": history(1.0, INF)},
    ),
    "loss_slope_slow": (
        {"validation_losses": history(INF, 1.0, 1.0)},
        {"validation_losses": history(1.0, 1.0, INF)},
    ),
    "loss_curvature": (
        {"validation_losses": history(1.0, 1.0, INF, 1.0, 1.0)},
        {"validation_losses": history(1.0, 1.0, 1.0, 1.0, INF)},
    ),
    "train_slope": (
        {"train_losses": history(INF, 1.0)},
        {"train_losses": history(1.0, INF)},
    ),
    "error": ({"scores": 7.0}, {"scores": -7.0}),
    "error_slope": ({"scores": history(-INF, 0.5)}, {"scores": history(0.5, -INF)}),
    "error_slope_slow": ({"scores": history(-INF, 0, 0.5)}, {"scores": history(0.5, 0, -INF)}),
    "error_over_best": ({"scores": 0.5, "best_score": 0.5}, {"scores": -INF}),
    "gradient_noise": ({}, {"gradient_noise": INF}),
    "gradient_trend": (
        {"gradient_norm": 0.0, "previous_gradient_norm": 1.0},
        {"gradient_norm": 1.0, "previous_gradient_norm": 0.0},
    ),
    "gradient_decay": (
        {"gradient_norm": 0.0, "first_gradient_norm": 1.0},
        {"gradient_norm": 1.0, "first_gradient_norm": 0.0},
    ),
    "flops_used": ({}, {"flops_used": INF}),
    "was_restored": ({}, {"was_restored": True}),
    "was_refused": ({}, {"was_refused": True}),
    **{f"did_{op.name.lower()}": ({}, {"last_op": int(op)}) for op in Op},
    "data_per_parameter": (
        {"n_samples": 1, "n_parameters": 10**6},
        {"n_samples": 10**6, "n_parameters": 1},
    ),
    "batches_per_epoch": ({"n_batches": 1}, {"n_batches": 10**6}),
    "task_epochs": ({"n_epochs": 1}, {"n_epochs": 10**6}),
    "price": ({}, {"flop_price": INF}),
    "is_free": ({"flop_price": 0.1}, {"flop_price": 0.0}),
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
    "has_hidden": ({}, {"first_hidden": 1}),
    "growth": ({"first_hidden": 8}, {"first_hidden": 8, "fossil_units": 120}),
    "step_size": (
        {"unit_parameters": 10**9},
        {"first_hidden": 8, "unit_parameters": 10**9},
    ),
    "blueprint": ({}, {"blueprint": N_BLUEPRINTS - 1}),
}


HIGHEST = {"batches_per_epoch": 2 * math.log(12) / math.log(1000) - 1}
"""The largest value of features that never reach 1."""


@pytest.mark.parametrize("name", [name for name in HOST_FEATURES if name in HOST_EXTREMES])
def test_each_host_feature_reaches_both_limits(name: str) -> None:
    low, high = HOST_EXTREMES[name]
    assert LAYOUT.host(encode(low, {}), name)[0] == pytest.approx(HOST_FEATURES[name][0], abs=1e-6)
    highest = HIGHEST.get(name, 1.0)
    assert LAYOUT.host(encode(high, {}), name)[0] == pytest.approx(highest, abs=1e-6)


def test_only_derived_features_have_no_limits_of_their_own() -> None:
    derived = {"loss_noise", "parameters_added", "task_slots"}
    assert HOST_FEATURES.keys() - HOST_EXTREMES.keys() == derived
    assert SLOT_FEATURES.keys() - SLOT_EXTREMES.keys() == {"position"}


@pytest.mark.parametrize("name", [name for name in SLOT_FEATURES if name in SLOT_EXTREMES])
def test_each_slot_feature_reaches_both_limits(name: str) -> None:
    low, high = SLOT_EXTREMES[name]
    minimum = LAYOUT.slot(encode({"gradient_norm": 1.0}, low), name)[0, 1]
    greatest = LAYOUT.slot(encode({"gradient_norm": 1.0}, high), name)[0, 1]
    assert minimum == pytest.approx(SLOT_FEATURES[name][0], abs=1e-6)
    assert greatest == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("n_slots", "expected", "task_slots"),
    [(1, [0.0], -1.0), (2, [0.0, 1.0], -2 / 3), (5, [0.0, 0.25, 0.5, 0.75, 1.0], None), (64, 0, 1)],
)
def test_slots_have_positions_and_are_counted(
    n_slots: int, expected: Any, task_slots: float | None
) -> None:
    layout = ObservationLayout(SlotConfig(tuple(f"blocks.{index}" for index in range(n_slots))))
    hosts = make_facts(HostFacts, (3,), n_epochs=16, last_op=-1)
    observations = layout.encode(hosts, make_facts(SlotArrays, (3, n_slots), blueprint=-1))
    if expected:
        assert layout.slot(observations, "position").tolist() == [pytest.approx(expected)] * 3
    if task_slots is not None:
        assert layout.host(observations, "task_slots").tolist() == [pytest.approx(task_slots)] * 3


def test_absent_slots_are_zero_and_not_counted() -> None:
    layout = ObservationLayout(SlotConfig(("a", "b", "c", "d")))
    hosts = make_facts(HostFacts, (1,), n_epochs=16, first_loss=1.0, last_op=-1)
    slots = make_facts(
        SlotArrays, (1, 4), blueprint=-1, alpha_at_rest=True, kind=[[2, -1, 2, 2]], contribution=0.1
    )
    observation = layout.encode(hosts, slots)
    assert layout.slot(observation, "position")[0].tolist() == [0.0, 0.0, 0.5, 1.0]
    assert layout.host(observation, "task_slots")[0] == pytest.approx(
        2 * np.log(3) / np.log(64) - 1
    )
    absent = observation[0, len(HOST_FEATURES) :].reshape(4, -1)[1]
    assert not absent.any()


def test_what_a_slot_grew_and_could_grow_is_relative() -> None:
    slot = {"first_hidden": [[8, 0]], "fossil_units": [[24, 0]], "unit_parameters": 10}
    observation = encode({"n_parameters": 640}, slot)
    assert LAYOUT.slot(observation, "growth")[0].tolist() == [0.5, 0.0]
    assert LAYOUT.slot(observation, "has_hidden")[0].tolist() == [1.0, 0.0]
    # 32 more units of 10 parameters are half of the host's.
    assert LAYOUT.slot(observation, "step_size")[0] == pytest.approx([1 / 3, 0.0])


def test_long_epochs_and_epochs_of_unknown_length_look_like_the_longest_of_the_prior() -> None:
    assert MAX_BATCHES == family.MAX_BATCHES
    same = [encode({"n_batches": n}, {}) for n in (MAX_BATCHES, 13, 5000, 0)]
    assert all(np.array_equal(each, same[0]) for each in same)
    assert not np.array_equal(encode({"n_batches": MAX_BATCHES - 1}, {}), same[0])


def test_features_before_the_first_epoch_are_neutral() -> None:
    unknown = dict.fromkeys(("train_losses", "validation_losses", "scores"), history())
    unknown |= {"scores": history(0.5), "best_score": 0.5, "best_loss": NAN, "first_loss": NAN}
    unknown |= {"gradient_norm": NAN, "previous_gradient_norm": NAN, "first_gradient_norm": NAN}
    observation = encode(unknown | {"gradient_noise": NAN}, {})
    for name in ("train_loss", "validation_loss"):
        assert LAYOUT.host(observation, name)[0] == 0.5
    by_prefix = [n for n in HOST_FEATURES if n.startswith(("loss_", "gradient_", "error_"))]
    for name in (*by_prefix, "train_slope", "data_per_parameter"):
        assert LAYOUT.host(observation, name)[0] == 0.0, name


@given(st.floats(-1e3, 1e3), st.floats(0.005, 2.0))
def test_scales_can_be_inverted(change: float, error: float) -> None:
    assert unsquash(squash(np.array(change))) == pytest.approx(change, rel=1e-9, abs=1e-9)
    scaled = log_scale(np.array(error), 0.005, 2.0)
    assert from_log_scale(scaled, 0.005, 2.0) == pytest.approx(error)


def test_added_parameters_are_summed_over_slots() -> None:
    observation = encode({"n_parameters": 100}, {"parameters": 50, "blueprint": 3})
    assert LAYOUT.host(observation, "parameters_added")[0] == pytest.approx(0.5)
    assert LAYOUT.slot(observation, "parameter_share")[0] == pytest.approx([1 / 3, 1 / 3])


def test_a_worked_example() -> None:
    # Losses halve in the last epoch, after a slow start: ln(4 / 1) over four epochs.
    ln2 = np.log(2.0)
    host = {
        "epoch": 4,
        "first_loss": 4.0,
        "train_losses": history(3.0, 2.0, 1.0, 0.75),
        "validation_losses": history(4.0, 4.0, 4.0, 2.0, 1.0),
        "best_loss": 0.5,
        "scores": history(0.2, 0.2, 0.5, 0.4, 0.6),
        "best_score": 0.8,
        "gradient_norm": 0.1,
        "previous_gradient_norm": 0.1,
        "first_gradient_norm": 0.1 * np.e,
        "gradient_noise": 0.5,
        "n_samples": 1000,
        "n_parameters": 10,
        "n_batches": 10,
        "flop_price": 0.1,
    }
    observation = encode(host, {"stage": 3, "stage_epochs": 1, "alpha": 0.5, "contribution": 0.1})
    squashed = {
        "train_loss": 0.75 / 4,
        "validation_loss": 0.25,
        "loss_gap": 4 * 0.25,
        "loss_over_best": 10 * ln2,
        "loss_slope": -10 * ln2,
        "loss_slope_slow": -10 * 2 * ln2 / 4,
        "loss_curvature": 10 * -2 * ln2 / 2,
        # Second differences 0, -2, 1 relative to a mean of 3.
        "loss_noise": 10 * 1 / 3,
        "train_slope": -10 * np.log(4.0) / 3,
        "error_slope": 10 * np.log(0.4 / 0.6),
        "error_slope_slow": -10 * ln2 / 4,
        "error_over_best": 10 * ln2,
        "gradient_noise": 1.0,
        "gradient_trend": 0.0,
        "gradient_decay": -1.0,
        "price": 1.0,
    }
    exact = {
        "progress": 0.25,
        "epochs_left": 2 * np.log(12) / np.log(100) - 1,
        "error": 2 * np.log(0.4 / 0.005) / np.log(400) - 1,
        "data_per_parameter": 2 / 3,
        "batches_per_epoch": -1 / 3,
        "is_free": 0.0,
    }
    expected = exact | {name: x / (1 + abs(x)) for name, x in squashed.items()}
    for name, value in expected.items():
        assert LAYOUT.host(observation, name)[0] == pytest.approx(value, abs=1e-6), name
    assert LAYOUT.slot(observation, "stage_age")[0, 0] == pytest.approx(0.25)
    assert LAYOUT.slot(observation, "contribution")[0, 0] == pytest.approx(0.25 / 1.25)


def test_losses_below_zero_change_relative_to_the_first() -> None:
    host = {"first_loss": -2.0, "validation_losses": history(-1.0, -1.4), "best_loss": -1.6}
    observation = encode(host, {})
    for name, raw in (("loss_slope", -2.0), ("loss_over_best", 1.0), ("validation_loss", -0.7)):
        assert LAYOUT.host(observation, name)[0] == pytest.approx(raw / (1 + abs(raw))), name


def test_hosts_of_any_size_look_alike_if_they_behave_alike() -> None:
    host = {
        "epoch": 5,
        "first_loss": 2.3,
        "train_losses": history(2.1, 1.7, 1.6, 1.2),
        "validation_losses": history(2.3, 2.2, 1.8, 1.7, 1.9),
        "best_loss": 1.7,
        "scores": history(0.1, 0.3, 0.5, 0.45),
        "best_score": 0.5,
        "gradient_norm": 0.3,
        "previous_gradient_norm": 0.5,
        "first_gradient_norm": 0.9,
        "gradient_noise": 0.2,
        "n_samples": 800,
        "n_parameters": 500,
        "n_batches": 20,
    }
    slot = {"parameters": 60, "gradient_norm": 0.1, "blueprint": 2, "contribution": 0.03}
    slot |= {"first_hidden": 8, "fossil_units": 8, "unit_parameters": 9}
    losses = ("first_loss", "train_losses", "validation_losses", "best_loss")
    norms = ("gradient_norm", "previous_gradient_norm", "first_gradient_norm")
    scaled = host | {name: 100 * np.array(host[name]) for name in losses}
    scaled |= {name: 7 * host[name] for name in norms}
    scaled |= {name: 1000 * host[name] for name in ("n_samples", "n_parameters")}
    larger = slot | {"gradient_norm": 0.7, "parameters": 60_000}
    larger |= {"first_hidden": 80, "fossil_units": 80, "unit_parameters": 900}
    np.testing.assert_allclose(encode(scaled, larger), encode(host, slot), atol=1e-6)


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
    with pytest.raises(UnknownFeatureError, match="'loss_slope'"):
        LAYOUT.host(observation, "loss_slpe")
