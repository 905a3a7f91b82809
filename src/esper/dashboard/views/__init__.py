"""Views of a run's telemetry as plain values, which the page shows live and in a report.

Every view can be written as JSON. Unknown and non-finite values are None.
"""

from esper.dashboard.views.comparison import (
    EVALUATION_FILE,
    NO_RESULTS,
    ComparisonView,
    EvaluationView,
    comparison_view,
    evaluation_files,
    evaluation_view,
)
from esper.dashboard.views.environments import WHICH, environments
from esper.dashboard.views.episode import EpisodeDetail, episode_detail, shown_episodes
from esper.dashboard.views.episodes import ORDERS, episode_list
from esper.dashboard.views.health import health
from esper.dashboard.views.learned import Learned, LearnedPart, learned
from esper.dashboard.views.listing import (
    ACTIVITY_FILE,
    NOTES_FILE,
    final_gaps,
    held_out_returns,
    read_activity,
    read_notes,
    started_at,
    write_notes,
)
from esper.dashboard.views.run import NO_HEADLINE, WITHOUT_CHART, headline, metric_series, overview
from esper.dashboard.views.values import MAX_POINTS

__all__ = [
    "ACTIVITY_FILE",
    "EVALUATION_FILE",
    "MAX_POINTS",
    "NOTES_FILE",
    "NO_HEADLINE",
    "NO_RESULTS",
    "ORDERS",
    "WHICH",
    "WITHOUT_CHART",
    "ComparisonView",
    "EpisodeDetail",
    "EvaluationView",
    "Learned",
    "LearnedPart",
    "comparison_view",
    "environments",
    "episode_detail",
    "episode_list",
    "evaluation_files",
    "evaluation_view",
    "final_gaps",
    "headline",
    "health",
    "held_out_returns",
    "learned",
    "metric_series",
    "overview",
    "read_activity",
    "read_notes",
    "shown_episodes",
    "started_at",
    "write_notes",
]
