"""Masks agree with the rules of legality, for one host, for many and from arrays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from esper.errors import DtypeError, ShapeError, SlotError, UnknownHeadError
from esper.lifecycle.factored_actions import HEAD_NAMES, HEADS_READ_BY, Op
from esper.lifecycle.legality import may_apply
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.action_masks import (
    SlotConfig,
    SlotMaskState,
    compute_action_masks,
    compute_array_masks,
    compute_batch_masks,
)

Host = list[SlotMaskState | None]


@st.composite
def configs(draw: st.DrawFn) -> SlotConfig:
    slots = tuple(f"slot_{i}" for i in range(draw(st.integers(1, 4))))
    subset = st.frozensets(st.sampled_from(BUILTIN_BLUEPRINTS))
    return SlotConfig(
        slots,
        enabled=draw(st.none() | st.frozensets(st.sampled_from(slots))),
        seed_limit=draw(st.none() | st.integers(0, 3)),
        fits=draw(st.dictionaries(st.sampled_from(slots), subset)),
        allow_finish=draw(st.booleans()),
    )


@st.composite
def populations(draw: st.DrawFn) -> tuple[SlotConfig, list[Host]]:
    config = draw(configs())
    slot = st.none() | st.builds(
        SlotMaskState, st.sampled_from(Stage), st.integers(0, 3), st.booleans()
    )
    host = st.lists(slot, min_size=config.max_slots, max_size=config.max_slots)
    return config, draw(st.lists(host, min_size=1, max_size=6))


def as_arrays(hosts: list[Host]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def column(read: object, empty: object) -> torch.Tensor:
        return torch.tensor([[read(s) if s else empty for s in host] for host in hosts])  # type: ignore

    stage = column(lambda s: int(s.stage), 0)
    age = column(lambda s: s.age_epochs, 0)
    return stage, age, column(lambda s: s.alpha_at_rest, True)


@given(populations())
def test_batch_masks_equal_those_of_single_hosts(drawn: tuple[SlotConfig, list[Host]]) -> None:
    config, hosts = drawn
    batch = compute_batch_masks(hosts, config)
    for row, host in enumerate(hosts):
        single = compute_action_masks(host, config)
        assert list(single) == [*HEAD_NAMES, "slot_by_op"]
        for name, mask in single.items():
            assert mask.dtype == torch.bool
            assert torch.equal(mask, batch[name][row]), name


@given(populations())
def test_array_masks_equal_those_of_objects(drawn: tuple[SlotConfig, list[Host]]) -> None:
    config, hosts = drawn
    objects, arrays = (
        compute_batch_masks(hosts, config),
        compute_array_masks(*as_arrays(hosts), config),
    )
    assert all(torch.equal(objects[name], arrays[name]) for name in objects)


@given(populations())
def test_masks_agree_with_legality(drawn: tuple[SlotConfig, list[Host]]) -> None:
    config, hosts = drawn
    for host in hosts:
        masks = compute_action_masks(host, config)
        legal = {op: [may_apply(op, slot, host, config) for slot in config.slot_ids] for op in Op}
        assert masks["slot_by_op"].tolist() == [legal[op] for op in Op]
        assert masks["op"].tolist() == [any(legal[op]) for op in Op]
        acting = [op for op in Op if "slot" in HEADS_READ_BY[op]]
        slots = [any(legal[op][s] for op in acting) for s in range(config.max_slots)]
        assert masks["slot"].tolist() == (slots if any(slots) else [True] * config.max_slots)
        open_slots = [s for s, ok in zip(config.slot_ids, legal[Op.GERMINATE], strict=True) if ok]
        fitting = [any(config.does_fit(b, s) for s in open_slots) for b in config.blueprints]
        assert masks["blueprint"].tolist() == (
            fitting if any(fitting) else [True] * len(config.blueprints)
        )
        for head in ("style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"):
            assert bool(masks[head].all())


class CountTensors(TorchDispatchMode):
    """Counts the tensors that operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.count += sum(
            isinstance(item, torch.Tensor)
            for item in (result if isinstance(result, (tuple, list)) else [result])
        )
        return result


def test_the_number_of_tensors_does_not_depend_on_the_batch() -> None:
    config = SlotConfig(("a", "b", "c"))
    host: Host = [
        SlotMaskState(Stage.HOLDING, 4, True),
        None,
        SlotMaskState(Stage.BLENDING, 2, False),
    ]
    counts = []
    for batch in (4, 1024):
        compute_batch_masks([host] * batch, config)
        with CountTensors() as counter:
            compute_batch_masks([host] * batch, config)
            compute_array_masks(*as_arrays([host] * batch), config)
        counts.append(counter.count)
    assert counts[0] == counts[1] > 0


def test_a_dormant_host_can_germinate_anywhere_or_wait() -> None:
    masks = compute_action_masks([None, None], SlotConfig(("a", "b")))
    legal_ops = {op.name for op in Op if masks["op"][op]}
    assert legal_ops == {"WAIT", "GERMINATE", "FINISH"}
    assert masks["slot_by_op"][Op.GERMINATE].tolist() == [True, True]


def test_masks_are_a_mapping() -> None:
    masks = compute_action_masks([None, None], SlotConfig(("a", "b")))
    assert "slot" in masks
    assert "slots" not in masks
    assert masks.get("slots") is None
    assert len(masks) == len(list(masks)) == 9
    assert "op=(7,)" in repr(masks)


def test_invalid_states_are_rejected() -> None:
    config = SlotConfig(("a", "b"))
    with pytest.raises(SlotError, match="host 1 has 1"):
        compute_batch_masks([[None, None], [None]], config)
    with pytest.raises(SlotError, match="empty"):
        compute_batch_masks([], config)
    stage, age = torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 2, dtype=torch.long)
    rest = torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"stage has shape \(3, 1\)"):
        compute_array_masks(stage[:, :1], age, rest, config)
    with pytest.raises(ShapeError, match=r"age_epochs has shape \(2, 2\)"):
        compute_array_masks(stage, age[:2], rest, config)
    with pytest.raises(ShapeError, match=r"stage has shape \(0, 2\)"):
        compute_array_masks(stage[:0], age[:0], rest[:0], config)
    with pytest.raises(DtypeError, match="stage has dtype"):
        compute_array_masks(stage.float(), age, rest, config)
    with pytest.raises(DtypeError, match="alpha_at_rest has dtype"):
        compute_array_masks(stage, age, rest.long(), config)
    with pytest.raises(UnknownHeadError, match="Did you mean 'slot'"):
        compute_action_masks([None, None], config)["slots"]


@pytest.mark.parametrize("value", [-1, 9])
def test_an_unknown_stage_is_rejected(value: int) -> None:
    stage = torch.zeros(3, 2, dtype=torch.int32)
    stage[1, 1] = value
    with pytest.raises(SlotError, match=f"host 1, slot 'b' is {value}"):
        compute_array_masks(
            stage, torch.zeros_like(stage), torch.ones_like(stage).bool(), SlotConfig(("a", "b"))
        )
