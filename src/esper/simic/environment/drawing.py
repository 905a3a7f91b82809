"""What the hosts of episodes learn from: a task's draws as specifications of hosts."""

from __future__ import annotations

from esper.growth.populations import HostData, HostSpec
from esper.simic.environment.splits import FinalSplit, make_host_data
from esper.tasks import Task, TaskDraw


class HostDrawer:
    """Draws hosts of a task. Hosts of a task with fixed data share its tensors."""

    def __init__(self, task: Task, final_split: FinalSplit) -> None:
        self.task = task
        self.final_split: FinalSplit = final_split
        self._fixed_data: HostData | None = None

    def draw(self, seed: int) -> tuple[TaskDraw, HostSpec]:
        """Return what the host of this seed learns and how it starts."""
        draw = self.task.sample(seed)
        spec = HostSpec(
            seed=seed,
            data=self._data_of(draw),
            learning_rate=draw.learning_rate,
            build=draw.make_host,
        )
        return draw, spec

    def _data_of(self, draw: TaskDraw) -> HostData:
        if self.task.data is None:
            return make_host_data(draw, self.final_split)
        if self._fixed_data is None:
            self._fixed_data = make_host_data(draw, self.final_split)
        return self._fixed_data
