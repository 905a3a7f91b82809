"""The sections of a report that are about one run."""

from __future__ import annotations

from esper.formatting import many, moment, number, whole
from esper.reports.run_report.blocks import Block, Code, Facts, Items, Mount, Rows, Section, Text
from esper.reports.run_report.learned_words import learned_sentences
from esper.reports.run_report.run_words import health_sentences, learning_sentences
from esper.reports.run_report.several import flat_settings
from esper.reports.run_report.tables import (
    blueprints_table,
    episode_table,
    learning_table,
    ops_table,
    trials_table,
)
from esper.reports.run_report.values import EpisodeValues, RunValues
from esper.reports.views import Episode

N_NOTICES = 20
"""Notices that are told, the newest."""
NO_STEPS = "Its steps were not recorded (telemetry.record_steps), so they cannot be shown."


def identity_sentence(run: RunValues) -> str:
    """Return what the run is about, in a few sentences."""
    settings, overview = flat_settings(run), run["overview"]
    options = ", ".join(f"{name} {value}" for name, value in _task_options(run).items())
    told = "A controller learns by PPO when and what to grow in networks that learn "
    told += f"{overview['task']}{f' ({options})' if options else ''}: in each of "
    told += f"{many(int(settings.get('rounds', 0)), 'round')}, {whole(overview['n_envs'])} hosts "
    told += f"side by side and {whole(settings.get('n_steps'))} steps of each. An episode is one "
    told += f"host that trains for {whole(overview['n_epochs'])} epochs at most; its return is its "
    told += "score minus what its computing costs, "
    told += f"{settings.get('budget.flop_price', 0.0):g} for the FLOPs of one reference run"
    rent = settings.get("budget.parameter_rent", 0.0)
    if rent:
        told += f", and {rent:g} for holding as many parameters more as the reference host has"
    return f"{told}."


def learning_section(run: RunValues, place: int, prefix: str = "") -> Section:
    """Return how the run learned, in words, charts and numbers."""
    tables: list[Block] = [Rows(table=learning_table(run))]
    return Section(
        title="How it learned",
        anchor=f"{prefix}learning",
        blocks=(
            Items(lines=learning_sentences(run)),
            Mount(drawing="charts", run=place, instead=tuple(tables)),
            Text(text="Trials on held-out hosts:"),
            Rows(table=trials_table(run)),
        ),
    )


def episodes_section(run: RunValues, place: int, prefix: str = "") -> Section:
    """Return a typical and the best episode, step by step."""
    if not run["episodes"]:
        blocks = (Text(text="No episode has ended yet."),)
        return Section(title="Episodes", anchor=f"{prefix}episodes", blocks=blocks)
    return Section(
        title="A typical and the best episode",
        anchor=f"{prefix}episodes",
        sections=tuple(
            Section(
                title=episode_heading(episode),
                anchor=f"{prefix}episode-{episode['kind']}",
                blocks=_episode_blocks(episode, place, at),
            )
            for at, episode in enumerate(run["episodes"])
        ),
    )


def episode_heading(episode: EpisodeValues) -> str:
    """Return which episode it is."""
    which = {"typical": "A typical episode", "best": "The best episode"}[episode["kind"]]
    return f"{which} since round {episode['since']}"


def learned_section(run: RunValues, place: int, prefix: str = "") -> Section:
    """Return what the controller learned, in sentences, charts and numbers."""
    learned = run["learned"]
    n_epochs = run["overview"]["n_epochs"] or 0
    instead = (
        Text(text="Ops of an episode, by part of training:"),
        Rows(table=ops_table(learned)),
        Text(text="Shares of the seeds that are germinated and of those that are kept:"),
        Rows(table=blueprints_table(learned)),
    )
    return Section(
        title="What the controller learned",
        anchor=f"{prefix}learned",
        blocks=(
            Items(lines=learned_sentences(learned, n_epochs=n_epochs)),
            Mount(drawing="learned", run=place, instead=instead if learned["parts"] else ()),
        ),
    )


def health_section(run: RunValues, place: int, prefix: str = "") -> Section:
    """Return what went wrong and how fast the run was."""
    notices = run["health"]["notices"]
    told = [
        f"Round {one['round']}, {one['kind']}: {one['message']}"
        for one in reversed(notices[:N_NOTICES])
    ]
    blocks: list[Block] = [Items(lines=health_sentences(run))]
    if notices:
        last = f" last ({len(told)} of {len(notices)})" if len(told) < len(notices) else ""
        said = f"What the run said of itself{last}:"
        blocks += [Text(text=said), Items(lines=tuple(told))]
    blocks.append(Mount(drawing="health", run=place))
    return Section(title="Health", anchor=f"{prefix}health", blocks=tuple(blocks))


def settings_section(run: RunValues, prefix: str = "") -> Section:
    """Return the configuration and the versions that it ran with."""
    overview = run["overview"]
    last = overview["sessions"][-1] if overview["sessions"] else None
    pairs = [
        ("folder", run["path"]),
        ("began", moment(overview["created_at"]) if overview["created_at"] else "unknown"),
        ("slots", ", ".join(overview["slots"])),
        ("blueprints", ", ".join(overview["blueprints"])),
        ("Esper", overview["esper_version"] or "unknown"),
    ]
    if last is not None:
        pairs += [
            ("PyTorch", last["torch_version"]),
            ("Python", last["python_version"]),
            ("platform", last["platform"]),
            ("threads", str(last["threads"])),
        ]
    return Section(
        title="Configuration and versions",
        anchor=f"{prefix}configuration",
        blocks=(
            Facts(pairs=tuple(pairs)),
            Text(text="All settings:"),
            Code(text=overview["config_toml"] or "", language="toml", is_long=True),
        ),
    )


def reproduce_section(run: RunValues, prefix: str = "") -> Section:
    """Return the commands that give the run and the report again."""
    return Section(
        title="How to reproduce it",
        anchor=f"{prefix}reproduce",
        blocks=(
            Text(text="This trains with the same settings:"),
            Code(text=run["command"], language="sh"),
            Text(
                text="The same settings, versions, threads and kind of processor give the same "
                "numbers. This makes the report again from the run's folder:"
            ),
            Code(text=run["report_command"], language="sh"),
        ),
    )


def _episode_blocks(episode: EpisodeValues, place: int, at: int) -> tuple[Block, ...]:
    detail = episode["detail"]
    result = detail["result"]
    assert result is not None, "an episode that is shown has ended"
    told = f"{episode['title']}, which ended in round {result['round']}: return "
    told += f"{number(result['ep_rew'])}, final score {number(result['final_score'])} after "
    told += f"{many(result['n_epochs'], 'epoch')} and {number(result['flops'], 2)} of the "
    told += f"reference run's FLOPs. The host began with {whole(result['host_parameters'])} "
    told += f"parameters; {_grown(result)}."
    steps = (Rows(table=episode_table(detail)) if detail["steps"] else Text(text=NO_STEPS),)
    return (Text(text=told), Mount(drawing="episode", run=place, episode=at, instead=steps))


def _grown(result: Episode) -> str:
    kept = result["n_grown"]
    if not kept:
        return "nothing was grown"
    seeds = f"{many(kept, 'seed')} with {whole(result['seed_parameters'])} more"
    return f"{seeds} {'was' if kept == 1 else 'were'} kept"


def _task_options(run: RunValues) -> dict[str, object]:
    return dict(run["headline"]["task_options"])
