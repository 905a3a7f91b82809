"""The names that ``import esper`` offers, in one list."""

from esper.config.environment import RewardConfig
from esper.config.growth import GovernorConfig, GrowthConfig
from esper.config.hosts import CNNHostConfig, GPTHostConfig, MLPHostConfig
from esper.config.population import PopulationConfig
from esper.config.run import RunConfig
from esper.config.tasks import Budget
from esper.growth.attach import add_slots, print_trainable_parameters
from esper.growth.blueprints import Blueprint, SeedForm, blueprint_names, register_blueprint
from esper.growth.export import export
from esper.growth.finding import find_slots
from esper.growth.footprint import TrainingMeter, footprint
from esper.growth.governor import Governor
from esper.growth.gradmax import maximise_gradient
from esper.growth.host_slots import slots
from esper.growth.hosts import make_host
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.populations import (
    HostData,
    HostSpec,
    SequentialPopulation,
    StackedPopulation,
    make_population,
)
from esper.growth.saving import load, save
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import SlotSite
from esper.growth.tensor_kinds import TensorKind
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, Op
from esper.lifecycle.growth_action import GrowthAction
from esper.lifecycle.stages import Stage
from esper.reports.evidence import Arm, Evidence
from esper.runs.comparing import compare
from esper.runs.controllers import find_controller
from esper.runs.evaluating import evaluate
from esper.runs.evidence_saving import save_evidence
from esper.runs.growing import GrownHost, grow_host
from esper.runs.growth_summary import GrowthSummary
from esper.runs.headroom import Headroom, headroom
from esper.runs.own_model import Grown, grow
from esper.runs.reporting import report
from esper.runs.run import Run, list_runs, load_run
from esper.runs.saving import save_grown
from esper.runs.training import RunInterrupted, resume, train
from esper.simic.environment import GrowthEnv, GrowthVectorEnv, make_env
from esper.simic.evaluation import EpisodeResults, run_episodes
from esper.tamiyo import (
    SavedController,
    controller_names,
    load_saved,
    make_controller,
    save_controller,
)
from esper.tasks import (
    Metric,
    Samples,
    Task,
    TaskData,
    TaskDraw,
    make_task,
    register_task,
    task_names,
)

__all__ = [
    "AlphaCurve",
    "Arm",
    "BlendStyle",
    "Blueprint",
    "Budget",
    "CNNHostConfig",
    "EpisodeResults",
    "Evidence",
    "GPTHostConfig",
    "Governor",
    "GovernorConfig",
    "Grown",
    "GrownHost",
    "GrowthAction",
    "GrowthConfig",
    "GrowthEnv",
    "GrowthSummary",
    "GrowthVectorEnv",
    "Headroom",
    "HostData",
    "HostSpec",
    "MLPHostConfig",
    "Metric",
    "Op",
    "OptimizerKeeper",
    "PopulationConfig",
    "RewardConfig",
    "Run",
    "RunConfig",
    "RunInterrupted",
    "Samples",
    "SavedController",
    "SeedForm",
    "SeedSlot",
    "SequentialPopulation",
    "SlotSite",
    "StackedPopulation",
    "Stage",
    "Task",
    "TaskData",
    "TaskDraw",
    "TensorKind",
    "TrainingMeter",
    "add_slots",
    "blueprint_names",
    "compare",
    "controller_names",
    "evaluate",
    "export",
    "find_controller",
    "find_slots",
    "footprint",
    "grow",
    "grow_host",
    "headroom",
    "list_runs",
    "load",
    "load_run",
    "load_saved",
    "make_controller",
    "make_env",
    "make_host",
    "make_population",
    "make_task",
    "maximise_gradient",
    "print_trainable_parameters",
    "register_blueprint",
    "register_task",
    "report",
    "resume",
    "run_episodes",
    "save",
    "save_controller",
    "save_evidence",
    "save_grown",
    "slots",
    "task_names",
    "train",
]
