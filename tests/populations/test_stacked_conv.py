"""Stacked convolutions equal a loop of F.conv2d over hosts, in every implementation."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.errors import DtypeError, ShapeError
from esper.populations import stacked_conv as module
from esper.populations.stacked_conv import is_kernel_available, stacked_conv2d

KERNEL = module._kernel  # type: ignore[attr-defined]
VARIANTS = KERNEL.variants() if KERNEL is not None else []
FORMS = ["tensors", *VARIANTS]
NEEDS_KERNEL = pytest.mark.skipif(
    not is_kernel_available(), reason="the compiled kernel was not built"
)
SAMPLES = [1, 2, 5, 7, 8, 15, 16, 17, 33, 40]


@contextmanager
def using(form: str) -> Iterator[None]:
    """Use one implementation: tensor operations, or the kernel for one instruction set."""
    if form != "tensors":
        KERNEL.choose(VARIANTS.index(form))
    module._kernel = None if form == "tensors" else KERNEL  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module._kernel = KERNEL  # type: ignore[attr-defined]
        if KERNEL is not None:
            KERNEL.choose(len(VARIANTS) - 1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution and the memory layout of its tensors."""

    hosts: int = 2
    groups: int = 1
    n_in: int = 3
    n_out: int = 4
    size: tuple[int, int] = (3, 3)
    height: int = 4
    width: int = 5
    samples: int = 8
    stride: int | tuple[int, int] = 1
    padding: str | int | tuple[int, int] = 1
    dilation: int | tuple[int, int] = 1
    has_bias: bool = True
    is_weight_a_view: bool = False
    is_x_permuted: bool = False
    seed: int = 0

    def __str__(self) -> str:
        default = {field.name: field.default for field in fields(self)}
        changed = [
            f"{name}={value}" for name, value in vars(self).items() if value != default[name]
        ]
        return ", ".join(changed) or "default"

    def tensors(self) -> list[Tensor]:
        """Draw x, the weight, the bias, of float32."""
        generator = torch.Generator().manual_seed(self.seed)
        per_host = (self.groups * self.n_out, self.n_in, *self.size)
        n_weights = self.groups * self.n_out * self.n_in * self.size[0] * self.size[1]
        shape = (self.hosts, self.groups * self.n_in, self.height, self.width, self.samples)
        x = torch.randn(shape, generator=generator)
        if self.is_x_permuted:
            x = x.permute(4, 0, 1, 2, 3).contiguous().permute(1, 2, 3, 4, 0)
        n_after = 3 + per_host[0] if self.is_weight_a_view else per_host[0]
        n_before = 2 if self.is_weight_a_view else 0
        flat = torch.randn(self.hosts, n_before + n_weights + n_after, generator=generator)
        weight = flat[:, n_before : n_before + n_weights].view(self.hosts, *per_host)
        bias = flat[:, n_before + n_weights :][:, : per_host[0]]
        if not self.is_weight_a_view:
            weight, bias = weight.contiguous(), bias.contiguous()
        return [x, weight, bias] if self.has_bias else [x, weight]

    def stacked(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run what is tested."""
        return stacked_conv2d(
            x,
            weight,
            bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def looped(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run one host after another."""
        biases = [None] * self.hosts if bias is None else bias
        options = (self.stride, self.padding, self.dilation, self.groups)
        outputs = [
            F.conv2d(images.permute(3, 0, 1, 2), w, b, *options)
            for images, w, b in zip(x, weight, biases, strict=True)
        ]
        return torch.stack(outputs).permute(0, 2, 3, 4, 1)


def output_and_gradients(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradient of each tensor for a fixed weighting."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    weighting = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape).sin()
    return [y.detach(), *torch.autograd.grad((y * weighting).sum(), leaves)]


def assert_equal_to_a_loop(case: Case) -> None:
    tensors = case.tensors()
    results = output_and_gradients(case.stacked, tensors)
    expected = output_and_gradients(case.looped, [tensor.double() for tensor in tensors])
    for result, reference in zip(results, expected, strict=True):
        # The error grows with the number of terms, which are of size one.
        scale = max(1.0, float(reference.abs().max()))
        torch.testing.assert_close(result.double(), reference, atol=2e-6 * scale, rtol=1e-5)


@st.composite
def three_by_three(draw: st.DrawFn) -> Case:
    return Case(
        hosts=draw(st.integers(1, 3)),
        groups=draw(st.sampled_from([1, 1, 2, 3])),
        n_in=draw(st.integers(1, 7)),
        n_out=draw(st.integers(1, 13)),
        height=draw(st.integers(1, 6)),
        width=draw(st.integers(1, 6)),
        samples=draw(st.sampled_from(SAMPLES)),
        has_bias=draw(st.booleans()),
        is_weight_a_view=draw(st.booleans()),
        is_x_permuted=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


@pytest.mark.parametrize("form", FORMS)
@given(case=three_by_three())
def test_three_by_three_equals_a_loop_over_hosts(form: str, case: Case) -> None:
    with using(form):
        assert_equal_to_a_loop(case)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_images_without_inner_pixels_equal_a_loop_over_hosts(
    form: str, height: int, width: int
) -> None:
    with using(form):
        for samples in (1, 8, 33):
            assert_equal_to_a_loop(Case(samples=samples, height=height, width=width, n_out=7))


@pytest.mark.parametrize("form", FORMS)
def test_depthwise_equals_a_loop_over_hosts(form: str) -> None:
    with using(form):
        for samples in (1, 7, 32, 33):
            assert_equal_to_a_loop(Case(groups=6, n_in=1, n_out=1, samples=samples, height=8))


@given(
    case=st.builds(
        Case,
        hosts=st.integers(1, 3),
        n_in=st.integers(1, 5),
        n_out=st.integers(1, 5),
        size=st.just((1, 1)),
        padding=st.sampled_from([0, "valid", "same"]),
        height=st.integers(1, 5),
        width=st.integers(1, 5),
        samples=st.sampled_from(SAMPLES),
        has_bias=st.booleans(),
        is_weight_a_view=st.booleans(),
        is_x_permuted=st.booleans(),
    )
)
def test_one_by_one_equals_a_loop_over_hosts(case: Case) -> None:
    assert_equal_to_a_loop(case)


@pytest.mark.parametrize(
    "case",
    [
        Case(stride=2),
        Case(stride=(1, 2), padding=(0, 2)),
        Case(padding=0),
        Case(padding="same"),
        Case(padding="valid", has_bias=False),
        Case(padding="same", size=(5, 3), dilation=(1, 2)),
        Case(padding="same", size=(2, 4), has_bias=False),
        Case(padding=2, dilation=2, is_x_permuted=True),
        Case(size=(5, 5), padding=2, is_weight_a_view=True),
        Case(size=(1, 1), padding=0, stride=2),
        Case(size=(1, 1), padding=0, stride=(3, 1), has_bias=False),
        Case(size=(1, 1), padding=1),
        Case(size=(1, 1), padding=0, groups=3, n_in=2, n_out=2),
        Case(size=(1, 3), padding=(0, 1), groups=2),
        Case(groups=4, n_in=1, n_out=2, stride=2),
    ],
    ids=str,
)
# Torch warns that "same" padding is asymmetric for even kernels.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_other_convolutions_equal_a_loop_over_hosts(case: Case) -> None:
    assert_equal_to_a_loop(case)


@pytest.mark.parametrize(
    "case",
    [
        Case(n_out=2, height=3, width=2, samples=2),
        Case(groups=3, n_in=1, n_out=1, height=2, width=3, samples=2),
        Case(size=(1, 1), padding=0, height=2, width=2, samples=2),
        Case(stride=2, height=3, width=3, samples=2, has_bias=False),
    ],
    ids=str,
)
def test_gradients_match_finite_differences_in_double_precision(case: Case) -> None:
    tensors = [tensor.double().requires_grad_() for tensor in case.tensors()]
    assert torch.autograd.gradcheck(case.stacked, tensors)
    torch.testing.assert_close(case.stacked(*tensors), case.looped(*tensors))


def test_a_worked_example() -> None:
    # Host 0 sums its neighbourhood; host 1 takes the pixel above, plus ten.
    x = torch.arange(1.0, 5.0).view(1, 1, 2, 2, 1).expand(2, 1, 2, 2, 1)
    weight = torch.zeros(2, 1, 1, 3, 3)
    weight[0] = 1
    weight[1, 0, 0, 0, 1] = 1
    y = stacked_conv2d(x, weight, torch.tensor([[0.0], [10.0]]), padding=1)
    assert y.flatten(1).tolist() == [[10, 10, 10, 10], [10, 10, 11, 12]]


@NEEDS_KERNEL
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("samples", [32, 33])
def test_the_number_of_threads_does_not_change_the_result(variant: str, samples: int) -> None:
    # Enough work to be split between threads: 21 million multiplications.
    case = Case(hosts=5, n_in=15, n_out=15, height=8, width=8, samples=samples)
    tensors = case.tensors()
    n_threads = torch.get_num_threads()
    results: list[list[Tensor]] = []
    try:
        for n in (1, 2, 3, 2):
            torch.set_num_threads(n)
            with using(variant):
                results.append(output_and_gradients(case.stacked, tensors))
    finally:
        torch.set_num_threads(n_threads)
    for other in results[1:]:
        # The bias, the last gradient, is summed by torch.
        for mine, theirs in zip(results[0][:3], other[:3], strict=True):
            assert torch.equal(mine, theirs)


@NEEDS_KERNEL
def test_concurrent_calls_do_not_interfere() -> None:
    case = Case(hosts=4, n_in=6, n_out=6, height=6, width=6, samples=9)
    tensors = case.tensors()
    expected = output_and_gradients(case.stacked, tensors)
    agreed: list[bool] = []

    def call() -> None:
        for _ in range(10):
            results = output_and_gradients(case.stacked, tensors)
            agreed.append(all(map(torch.equal, results, expected)))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agreed == [True] * 30


# Only 3x3 convolutions with stride 1 run in the kernel.
NAN_CASES = [
    ("tensors", Case(hosts=3, size=(1, 1), padding=0)),
    ("tensors", Case(hosts=3, stride=2)),
]
for _form in FORMS:
    NAN_CASES += [(_form, Case(hosts=3, samples=samples)) for samples in (7, 33)]
    NAN_CASES += [(_form, Case(hosts=3, groups=3, n_in=1, n_out=1))]


@pytest.mark.parametrize(("form", "case"), NAN_CASES, ids=str)
def test_nan_in_one_host_does_not_reach_others(form: str, case: Case) -> None:
    sound = case.tensors()
    with using(form):
        expected = output_and_gradients(case.stacked, sound)
        for broken in range(len(sound)):
            tensors = case.tensors()
            tensors[broken][1] = float("nan")
            results = output_and_gradients(case.stacked, tensors)
            assert results[0][1].isnan().all()
            for result, reference in zip(results, expected, strict=True):
                torch.testing.assert_close(result[::2], reference[::2])


@pytest.mark.parametrize("form", FORMS)
def test_nan_in_one_sample_does_not_reach_others(form: str) -> None:
    case = Case(samples=11)
    x, weight, bias = case.tensors()
    with using(form):
        expected = case.stacked(x, weight, bias)
        x[..., 3] = float("inf")
        y = case.stacked(x, weight, bias)
    others = torch.arange(11) != 3
    torch.testing.assert_close(y[..., others], expected[..., others])
    assert not y[..., 3].isfinite().any()


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_the_flat_parameters(form: str) -> None:
    flat = torch.randn(2, 3 * 2 * 9 + 3, generator=torch.Generator().manual_seed(0))
    flat.requires_grad_()
    weight, bias = flat[:, :-3].view(2, 3, 2, 3, 3), flat[:, -3:]
    x = torch.ones(2, 2, 1, 1, 4)
    with using(form):
        stacked_conv2d(x, weight, bias, padding=1).sum().backward()
    assert flat.grad is not None
    # One position: only the middle tap of each kernel sees the four samples.
    expected = torch.zeros(2, 6, 9)
    expected[:, :, 4] = 4
    torch.testing.assert_close(flat.grad[:, :-3].view(2, 6, 9), expected)
    torch.testing.assert_close(flat.grad[:, -3:], torch.full((2, 3), 4.0))


@pytest.mark.parametrize("form", FORMS)
def test_only_tensors_that_require_gradients_get_one(form: str) -> None:
    x, weight, bias = Case().tensors()
    with using(form):
        stacked_conv2d(x, weight.requires_grad_(), bias, padding=1).sum().backward()
        assert weight.grad is not None
        assert x.grad is None
        assert not stacked_conv2d(x, weight.detach(), bias, padding=1).requires_grad


@pytest.mark.parametrize("form", FORMS)
def test_the_result_is_contiguous(form: str) -> None:
    cases = (Case(), Case(stride=2), Case(size=(1, 1), padding=0), Case(is_x_permuted=True))
    with using(form):
        for case in cases:
            assert case.stacked(*case.tensors()).is_contiguous(), case


def test_tensors_that_do_not_fit_are_rejected() -> None:
    x, weight, bias = Case().tensors()
    with pytest.raises(ShapeError, match=r"x has shape \(0, 3, 4, 5, 8\)"):
        stacked_conv2d(x[:0], weight[:0], bias[:0])
    with pytest.raises(ShapeError, match=r"x has shape \(3, 4, 5, 8\)"):
        stacked_conv2d(x[0], weight, bias)
    with pytest.raises(ShapeError, match=r"weight has shape \(1, 4, 3, 3, 3\)"):
        stacked_conv2d(x, weight[:1], bias)
    with pytest.raises(ShapeError, match=r"weight has shape \(2, 4, 2, 3, 3\)"):
        stacked_conv2d(x, weight[:, :, :2], bias)
    with pytest.raises(ShapeError, match="groups is 2"):
        stacked_conv2d(x, weight, bias, groups=2)
    with pytest.raises(ShapeError, match=r"weight has shape .*groups \(3\)"):
        stacked_conv2d(x, weight[:, :, :1], bias, groups=3)
    with pytest.raises(ShapeError, match="bias has shape"):
        stacked_conv2d(x, weight, bias[:, :2])
    with pytest.raises(DtypeError, match="weight has dtype"):
        stacked_conv2d(x, weight.double(), bias)
    with pytest.raises(DtypeError, match="x has dtype"):
        stacked_conv2d(x.long(), weight, bias)
