"""The public names of ``import esper``."""

from esper.config.growth import (
    Budget,
    CNNHostConfig,
    GovernorConfig,
    GPTHostConfig,
    GrowthConfig,
    MLPHostConfig,
    PopulationConfig,
    RewardConfig,
)
from esper.config.run import RunConfig
from esper.dashboard.figures import save_evidence
from esper.dashboard.report import report
from esper.dashboard.study import study
from esper.environment import EpisodeResults, GrowthEnv, GrowthVectorEnv, make_env, run_episodes
from esper.evidence.compare import compare
from esper.evidence.evaluation import evaluate
from esper.growing.decisions import Decision, Trace
from esper.growing.grow import grow
from esper.growing.grower import Grower
from esper.growing.grown import Grown, GrowthSummary, save_grown
from esper.growth.blueprints import Blueprint, SeedForm, blueprint_names, register_blueprint
from esper.growth.export import export
from esper.growth.footprint import footprint
from esper.growth.governor import Governor
from esper.growth.host_slots import slots
from esper.growth.hosts import make_host
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import add_slots, find_slots
from esper.growth.saved_models import load, save
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import SlotSite, TensorKind
from esper.growth.surgery.changes import Change, deepen, widen
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import HostData, HostSpec, make_population
from esper.results.arms import Arm
from esper.results.evidence import Evidence
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
from esper.training.lookup import find_controller
from esper.training.run import Run, list_runs, load_run
from esper.training.runs import RunInterrupted, resume, train

__all__ = [
    "AlphaCurve",
    "Arm",
    "BlendStyle",
    "Blueprint",
    "Budget",
    "CNNHostConfig",
    "Change",
    "Decision",
    "EpisodeResults",
    "Evidence",
    "GPTHostConfig",
    "Governor",
    "GovernorConfig",
    "Grower",
    "Grown",
    "GrowthAction",
    "GrowthConfig",
    "GrowthEnv",
    "GrowthSummary",
    "GrowthVectorEnv",
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
    "SlotSite",
    "Stage",
    "Task",
    "TaskData",
    "TaskDraw",
    "TensorKind",
    "Trace",
    "add_slots",
    "blueprint_names",
    "compare",
    "controller_names",
    "deepen",
    "evaluate",
    "export",
    "find_controller",
    "find_slots",
    "footprint",
    "grow",
    "list_runs",
    "load",
    "load_run",
    "load_saved",
    "make_controller",
    "make_env",
    "make_host",
    "make_population",
    "make_task",
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
    "study",
    "task_names",
    "train",
    "widen",
]
