"""Whether a host's data fit the design of its population."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from esper.errors import ConfigError
from esper.growth.dry_run import evaluation_mode
from esper.growth.populations.host_data import SPLITS, HostData, HostSpec
from esper.growth.populations.objective import CrossEntropy, Objective
from esper.growth.tensor_kinds import describe

Kind = tuple[Any, ...]


class DataCheck:
    """Tries a design on data, once for each kind of data."""

    def __init__(self, template: nn.Module, objective: Objective) -> None:
        self.template = template
        self.objective = objective
        self._known: set[Kind] = set()
        self._fitting: WeakSet[HostData] = WeakSet()

    def require_fit(self, host: int, spec: HostSpec) -> None:
        """Refuse data that the design cannot be run on, in any split.

        Raises:
            ConfigError: If it cannot; the message names the host.
        """
        data = spec.data
        if data in self._fitting:
            return
        form = sample_form(data)
        for split in SPLITS:
            if not data.has_split(split):
                continue
            inputs, targets = data.split(split)
            own = _form_of(inputs, targets)
            if own != form:
                raise ConfigError(
                    f"the data of host {host} are not of one form: its train split has "
                    f"{describe_form(form)}, its {split} split {describe_form(own)}."
                )
            kind = (form, _range_of(inputs), _range_of(targets))
            if kind not in self._known:
                self._try(host, split, inputs, targets)
                self._known.add(kind)
        self._fitting.add(data)

    def _try(self, host: int, split: str, inputs: Tensor, targets: Tensor) -> None:
        rows, cause = _telling_rows(inputs, targets), None
        try:
            with torch.no_grad(), evaluation_mode(self.template):
                outputs: Any = self.template(inputs[rows])
                problem = self._find_problem(outputs, targets, rows)
        # A user's model and objective may raise anything.
        except Exception as error:
            problem = (str(error).splitlines() or [""])[0] or type(error).__name__
            cause = error
        if problem is not None:
            where = "" if split == "train" else f" in its {split} split"
            raise ConfigError(
                f"the data of host {host} do not fit the model{where}: {problem}"
            ) from cause

    def _find_problem(self, outputs: Any, targets: Tensor, rows: Tensor) -> str | None:
        """Return what is wrong with what a model makes of some samples, or None."""
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != rows.shape:
            return f"it returns {describe(outputs)}; a tensor is needed, a row for each sample."
        if isinstance(self.objective, CrossEntropy):
            self.objective.require_classes(outputs.shape[-1], targets)
        for measure in (self.objective.losses, self.objective.metrics):
            values: Any = measure(outputs, targets[rows])
            if not isinstance(values, Tensor) or values.shape[:1] != rows.shape:
                return (
                    f"the objective's {measure.__name__} returns {describe(values)} for "
                    f"{len(rows)} samples; a tensor with a number for each is needed."
                )
        return None


def sample_form(data: HostData) -> Kind:
    """Return the shapes and dtypes of one sample to learn from and of its target."""
    return _form_of(*data.split("train"))


def _form_of(inputs: Tensor, targets: Tensor) -> Kind:
    return inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype


def describe_form(form: Kind) -> str:
    """Return shapes and dtypes of samples in words."""
    names = [str(dtype).removeprefix("torch.") for dtype in (form[1], form[3])]
    return f"{names[0]} inputs {list(form[0])} with {names[1]} targets {list(form[2])}"


def _range_of(numbers: Tensor) -> Kind:
    """Return the least and the largest of whole numbers, which a model may look up in a table."""
    if not _is_whole(numbers):
        return ()
    least, most = torch.aminmax(numbers)
    return least.item(), most.item()


def _is_whole(numbers: Tensor) -> bool:
    is_real = numbers.is_floating_point() or numbers.is_complex()
    return not is_real and numbers.numel() > 0


def _telling_rows(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the first samples, and those with the least and the largest whole numbers."""
    rows = {0, 1}
    for numbers in (inputs, targets):
        if _is_whole(numbers):
            by_row = numbers.numel() // len(numbers)
            flat = numbers.flatten().to(torch.int64)
            rows |= {int(flat.argmin()) // by_row, int(flat.argmax()) // by_row}
    return torch.tensor(sorted(rows))
