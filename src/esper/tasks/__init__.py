"""Tasks: the data that hosts learn from, the hosts, the metric and the budget."""

from esper.config.catalogue import TASKS
from esper.config.growth import Budget
from esper.tasks import digits, digits_family, prior, spirals, text
from esper.tasks.data import Samples, TaskData, TaskDraw, check_data
from esper.tasks.digits import load_digits, split_digits
from esper.tasks.metrics import ACCURACY, RELATIVE_ERROR, Metric, bits_per_character
from esper.tasks.registry import make_task, register_task, task_names, task_summaries
from esper.tasks.task import Task
from esper.tasks.text import load_book

_MAKERS = {
    "digits": digits.make_digits,
    "digits-family": digits_family.make_digits_family,
    "text": text.make_text,
    "spirals": spirals.make_spirals,
    "prior": prior.make_prior,
}
for _name, _summary in TASKS.items():
    register_task(_name, _MAKERS[_name], summary=_summary)

__all__ = [
    "ACCURACY",
    "RELATIVE_ERROR",
    "Budget",
    "Metric",
    "Samples",
    "Task",
    "TaskData",
    "TaskDraw",
    "bits_per_character",
    "check_data",
    "load_book",
    "load_digits",
    "make_task",
    "register_task",
    "split_digits",
    "task_names",
    "task_summaries",
]
