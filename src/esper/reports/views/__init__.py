"""Views of a run's telemetry as plain values, shared by the dashboard and the report.

Every view can be written as JSON. Unknown and non-finite values are None.
"""

from esper.reports.views.comparison import ComparisonView, comparison_view
from esper.reports.views.environments import WHICH, Environment, Environments, environments
from esper.reports.views.episode import Bar, EpisodeDetail, Step, episode_detail
from esper.reports.views.episodes import ORDERS, Episode, EpisodeList, Order, episode_list
from esper.reports.views.health import Health, health
from esper.reports.views.learned import Learned, LearnedPart, learned
from esper.reports.views.listing import (
    ACTIVITY_FILE,
    NOTES_FILE,
    Activity,
    final_gaps,
    held_out_returns,
    read_activity,
    read_notes,
    started_at,
)
from esper.reports.views.presets import PresetView, nearest_preset
from esper.reports.views.run import (
    WITHOUT_CHART,
    Evaluation,
    Headline,
    MetricSeries,
    Overview,
    Points,
    Session,
    evaluations,
    headline,
    metric_series,
    overview,
)
from esper.reports.views.thinning import MOST_POINTS

__all__ = [
    "ACTIVITY_FILE",
    "MOST_POINTS",
    "NOTES_FILE",
    "ORDERS",
    "WHICH",
    "WITHOUT_CHART",
    "Activity",
    "Bar",
    "ComparisonView",
    "Environment",
    "Environments",
    "Episode",
    "EpisodeDetail",
    "EpisodeList",
    "Evaluation",
    "Headline",
    "Health",
    "Learned",
    "LearnedPart",
    "MetricSeries",
    "Order",
    "Overview",
    "Points",
    "PresetView",
    "Session",
    "Step",
    "comparison_view",
    "environments",
    "episode_detail",
    "episode_list",
    "evaluations",
    "final_gaps",
    "headline",
    "health",
    "held_out_returns",
    "learned",
    "metric_series",
    "nearest_preset",
    "overview",
    "read_activity",
    "read_notes",
    "started_at",
]
