"""What is recorded of a run as plain values, ready to be shown: for pages, reports and tests.

Every value can be written as JSON. What is unknown or not finite is None.
"""

from esper.reports.views.bars import Bar
from esper.reports.views.comparison import ComparisonView, comparison_view
from esper.reports.views.environments import Environment, Environments, environments
from esper.reports.views.episode import EpisodeDetail, episode_detail
from esper.reports.views.episodes import ORDERS, Episode, EpisodeList, Order, episode_list
from esper.reports.views.evaluations import Evaluation, evaluations
from esper.reports.views.headline import Headline, headline
from esper.reports.views.health import Health, health
from esper.reports.views.learned import Learned, LearnedPart, learned
from esper.reports.views.overview import Overview, Session, overview
from esper.reports.views.series import MetricSeries, Points, metric_series
from esper.reports.views.steps import Step

__all__ = [
    "ORDERS",
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
    "Session",
    "Step",
    "comparison_view",
    "environments",
    "episode_detail",
    "episode_list",
    "evaluations",
    "headline",
    "health",
    "learned",
    "metric_series",
    "overview",
]
