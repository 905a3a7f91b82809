"""What is recorded of a run as plain values, ready to be shown: for pages, reports and tests."""

from esper.reports.views.episode import episode_detail
from esper.reports.views.episodes import episode_list
from esper.reports.views.headline import headline
from esper.reports.views.overview import overview
from esper.reports.views.series import metric_series

__all__ = [
    "episode_detail",
    "episode_list",
    "headline",
    "metric_series",
    "overview",
]
