"""The content of a report: the verdict first, then progress, episodes, health and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from esper.config.growth import RELATIVE_REWARDS
from esper.evidence.claims import verdict_sentences
from esper.evidence.results import Evidence
from esper.evidence.text import facts, results_table
from esper.evidence.text import settings_table as tuned_settings_table
from esper.formatting import (
    duration,
    listed,
    many,
    memory,
    moment,
    number,
    share,
    signed_points,
    span,
    whole,
)
from esper.reports.run_report.blocks import (
    Block,
    Code,
    Document,
    Facts,
    Items,
    Mount,
    Rows,
    Section,
    Text,
)
from esper.reports.run_report.tables import (
    MIN_RUNS,
    blueprints_table,
    carried_out_table,
    comparison_table,
    differences_table,
    episode_table,
    evaluations_table,
    flat_settings,
    has_interval,
    is_one_method,
    learning_table,
    ops_table,
    return_minus,
    returns_table,
    runs_table,
    settings_table,
    timing_table,
)
from esper.reports.run_report.values import (
    EpisodeValues,
    ReportValues,
    RunValues,
    episode_heading,
)
from esper.reports.views import Learned, PresetView
from esper.statistics import mean_interval
from esper.training.comparison import LABELS

N_NOTICES = 20
"""Latest notices shown."""

_OWN_TRAINING = (
    "A record of the user's own training: no controller learned in it, so there is none to compare."
)
_PPO_TRAINING = "A record of PPO on an environment of the user's own: no network is grown in it."
_NOT_EVALUATED = (
    "Not evaluated against tuned rules, static networks and training from scratch yet; "
    "run esper evaluate."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundEvidence:
    """The results of an evaluation at one price, and the file they come from."""

    source: str
    evidence: Evidence


def make_document(values: ReportValues, evidence: Sequence[FoundEvidence] = ()) -> Document:
    """Return the report on one or more runs.

    Args:
        values: The data of the report.
        evidence: Evaluations of the runs, one for each price.
    """
    runs = values["runs"]
    names = [run["name"] for run in runs]
    footer: list[Block] = [
        Text(text=f"Made by Esper {values['esper_version']} on {moment(values['made_at'])}.")
    ]
    if values["problems"]:
        footer.append(Items(lines=tuple(values["problems"])))
    evaluations = [_evaluation_section(one, names, place) for place, one in enumerate(evidence)]
    if len(runs) == 1:
        return _report_one(runs[0], evaluations, footer)
    return _report_several(runs, evaluations, footer)


def _report_one(run: RunValues, evaluations: list[Section], footer: list[Block]) -> Document:
    comparison = _comparison_section(run, 0, "")
    verdict = Section(title="Verdict", anchor="verdict", sections=(*evaluations, comparison))
    if not evaluations:
        is_of_growth = not _is_own_training(run) and not _is_ppo(run)
        advice = (Text(text=_NOT_EVALUATED),) if is_of_growth else ()
        blocks = (*comparison.blocks, *advice)
        verdict = Section(title="Verdict", anchor="verdict", blocks=blocks)
    return Document(
        title=f"Report on {run['name']}",
        blocks=(_overview(run), *footer),
        sections=(verdict, *_run_sections(run, 0, "")),
    )


def _report_several(
    runs: Sequence[RunValues], evaluations: list[Section], footer: list[Block]
) -> Document:
    differences = settings_table(runs)
    compared = Section(
        title="Comparison of the runs",
        anchor="runs",
        blocks=(
            *_verdicts(runs),
            Rows(table=runs_table(runs)),
            Items(lines=_table_notes(runs)),
            *(() if evaluations else (Text(text=_NOT_EVALUATED),)),
        ),
    )
    return Document(
        title=f"Report on {len(runs)} runs",
        blocks=(Text(text=f"Runs: {listed([run['name'] for run in runs])}."), *footer),
        sections=(
            Section(title="Verdict", anchor="verdict", sections=(*evaluations, compared)),
            Section(
                title="Learning curves",
                anchor="learning",
                blocks=(Mount(drawing="charts", instead=(Rows(table=returns_table(runs)),)),),
            ),
            Section(
                title="Differences in settings",
                anchor="settings",
                blocks=(Rows(table=differences) if differences.rows else Text(text="None."),),
            ),
            *(
                Section(
                    title=run["name"],
                    anchor=f"run-{place}",
                    blocks=(_overview(run),),
                    sections=(
                        _comparison_section(run, place, f"run-{place}-"),
                        *_run_sections(run, place, f"run-{place}-"),
                    ),
                )
                for place, run in enumerate(runs)
            ),
        ),
    )


def _verdicts(runs: Sequence[RunValues]) -> list[Block]:
    """Return the results of the comparisons at the ends of runs, together and one by one."""
    lines = [
        f"{run['name']}: {view['sentences'][0]}"
        for run in runs
        if (view := run["comparison"]) is not None and view["sentences"]
    ]
    blocks: list[Block] = []
    if has_interval(runs) and len(lines) == len(runs):
        means: list[str] = []
        for against in ("wait", "fixed"):
            found = [one for run in runs if (one := return_minus(against)(run)) is not None]
            means.append(f"{mean_interval(found).text()} to {LABELS[against]}")
        text = f"Mean difference in return of {len(runs)} training runs: {listed(means)}."
        blocks.append(Text(text=text, is_verdict=True))
    return [*blocks, Items(lines=tuple(lines or ["No run has been compared yet."]))]


def _table_notes(runs: Sequence[RunValues]) -> tuple[str, ...]:
    columns = (
        "All numbers are from the comparison at the end of each run, on held-out hosts; of a run "
        "that is not done, from the evaluation that selected its controller. The gain is the score "
        "minus that of the same hosts left alone."
    )
    if not is_one_method(runs):
        return columns, "The settings of the runs differ, so no mean is given."
    if len(runs) < MIN_RUNS:
        return columns, f"An interval over runs needs at least {MIN_RUNS} runs."
    return columns, f"Brackets: 95% confidence intervals over {len(runs)} training runs."


def _evaluation_section(found: FoundEvidence, names: Sequence[str], place: int) -> Section:
    evidence = found.evidence
    first, *others = verdict_sentences(evidence)
    blocks: list[Block] = [
        Text(text=first, is_verdict=True),
        Items(lines=tuple(others)),
        Text(text=f"Score in points, {evidence.own.label} minus each:"),
        Mount(drawing="arms", evaluation=place),
        Rows(table=results_table(evidence)),
    ]
    missing = [name for name in names if name not in evidence.runs]
    about = [f"Evaluated: {listed(list(evidence.runs))}; not {listed(missing)}."] if missing else []
    blocks.append(Items(lines=(*about, *facts(evidence))))
    settings = tuned_settings_table(evidence)
    if settings.rows:
        blocks.append(Rows(table=settings))
    if evidence.command:
        blocks.append(Text(text=f"From {found.source}. To measure it again:"))
        blocks.append(Code(text=evidence.command, language="sh"))
    return Section(
        title=f"Evaluation on {evidence.task} at price {evidence.price:g}",
        anchor=f"evaluation-{place + 1}",
        blocks=tuple(blocks),
    )


def _is_own_training(run: RunValues) -> bool:
    return run["overview"]["learns"] is False


def _is_ppo(run: RunValues) -> bool:
    return run["overview"]["grows"] is False


def _comparison_section(run: RunValues, place: int, prefix: str) -> Section:
    """Return the comparison with other controllers at the end of a run."""
    view = run["comparison"]
    title, anchor = "Comparison at the end of the run", f"{prefix}comparison"
    if view is None or not view["arms"]:
        problems = [] if view is None else view["problems"]
        verdict = "Not compared with other controllers yet."
        verdict = _OWN_TRAINING if _is_own_training(run) else verdict
        verdict = _PPO_TRAINING if _is_ppo(run) else verdict
        text = " ".join([verdict, *problems])
        return Section(title=title, anchor=anchor, blocks=(Text(text=text),))
    sentences = view["sentences"]
    is_relative = run["overview"]["reward"] in RELATIVE_REWARDS
    relative = ", relative to the same hosts left alone" if is_relative else ""
    note = (
        f"{view['n_hosts']} held-out hosts, {view['split']} split. Return is the score minus the "
        f"cost of FLOPs and added parameters{relative}. FLOPs are relative to the reference run, "
        "added parameters to the host. Brackets: 95% confidence intervals over hosts, for this one "
        "training run."
    )
    return Section(
        title=title,
        anchor=anchor,
        blocks=(
            *(Text(text=sentence, is_verdict=True) for sentence in sentences[:1]),
            *(Text(text=sentence) for sentence in sentences[1:2]),
            Text(text="Return, learned minus each:"),
            Mount(drawing="differences", run=place, instead=(Rows(table=differences_table(view)),)),
            Rows(table=comparison_table(view)),
            Items(lines=(*sentences[2 + len(view["differences"]) :], *view["problems"])),
            Text(text=note),
        ),
    )


def _overview(run: RunValues) -> Facts:
    """Return the state of a run and what it trains."""
    headline, overview, settings = run["headline"], run["overview"], flat_settings(run)
    progress = f"{headline['rounds_done']} of {many(headline['rounds'] or 0, 'round')}, "
    steps = "environment steps" if _is_ppo(run) else "host-epochs"
    progress += f"{whole(headline['env_steps'])} {steps}"
    if headline["seconds"]:
        progress += f", {duration(headline['seconds'])} of training"
    session = overview["sessions"][-1:]
    failure = f" ({session[0]['message']})" if session and session[0]["message"] else ""
    options = [f"{name} {value}" for name, value in headline["task_options"].items()]
    price, rent = settings.get("budget.flop_price", 0.0), settings.get("budget.parameter_rent", 0.0)
    pairs = (
        ("state", run["state"] + (failure if run["state"] == "failed" else "")),
        ("progress", progress),
        ("task", f"{overview['task']}{f' ({listed(options)})' if options else ''}"),
        (
            "rollouts",
            f"{whole(overview['n_envs'])} {'environments' if _is_ppo(run) else 'hosts'}, "
            f"{whole(settings.get('n_steps'))} steps each"
            + ("" if _is_ppo(run) else f", episodes of up to {whole(overview['n_epochs'])} epochs"),
        ),
        ("price", f"{price:g} for the FLOPs of the reference run, parameter rent {rent:g}"),
    )
    return Facts(pairs=pairs[:-1] if _is_ppo(run) else pairs)


def _run_sections(run: RunValues, place: int, prefix: str) -> tuple[Section, ...]:
    """Return the sections about one run; ``place`` is its index in the report."""
    is_own = _is_own_training(run) or _is_ppo(run)
    charts = Mount(drawing="charts", run=place, instead=(Rows(table=learning_table(run)),))
    trials = (Text(text="Evaluations on held-out hosts:"), Rows(table=evaluations_table(run)))
    training = (
        Text(
            text="Train with the same settings; the same versions, threads and kind of "
            "processor give the same numbers:"
        ),
        Code(text=run["command"], language="sh"),
    )
    return (
        Section(
            title="Learning curves",
            anchor=f"{prefix}learning",
            blocks=(charts,) if is_own else (Facts(pairs=_learning_facts(run)), charts, *trials),
        ),
        *(() if _is_ppo(run) else (_episodes_section(run, place, prefix),)),
        *(() if is_own else (_learned_section(run, place, prefix),)),
        _health_section(run, place, prefix),
        _settings_section(run, prefix),
        Section(
            title="How to reproduce this",
            anchor=f"{prefix}reproduce",
            blocks=(
                *(() if is_own else training),
                Text(text="Write this report again:"),
                Code(text=run["report_command"], language="sh"),
            ),
        ),
    )


def _learning_facts(run: RunValues) -> tuple[tuple[str, str], ...]:
    """Return how the controller did on held-out hosts during training."""
    trials = [
        one for one in run["evaluations"] if one["arm"] == "learned" and one["purpose"] == "tuning"
    ]
    if not trials:
        return (("held-out return", "not evaluated yet"),)
    headline = run["headline"]
    best = next((one for one in reversed(trials) if one["is_best"]), trials[-1])
    pairs = [
        (f"{name} held-out return", f"{number(one['ep_rew_mean'])} after round {one['round']}")
        for name, one in (("first", trials[0]), ("best", best), ("last", trials[-1]))
    ]
    fixed = next(
        (
            one["ep_rew_mean"]
            for one in run["evaluations"]
            if one["arm"] == "fixed" and one["purpose"] == "tuning"
        ),
        None,
    )
    if fixed is not None:
        passed = [
            one["round"]
            for one in trials
            if one["ep_rew_mean"] is not None and one["ep_rew_mean"] > fixed
        ]
        when = f"first passed after round {passed[0]}" if passed else "not passed yet"
        pairs.append(("fixed schedule", f"{fixed:.3f}, {when}"))
    gain, score = headline["accuracy_gain"], headline["best_score"]
    if gain is not None and score is not None:
        remark = "; slightly optimistic, because these hosts select the controller"
        pairs.append(
            (
                "gain in score",
                f"{signed_points(gain)} over the same hosts left alone ({score:.3f})"
                + ("" if headline["is_final"] else remark),
            )
        )
    if headline["flops"] is not None:
        pairs.append(("FLOPs", f"{headline['flops']:.2f} of the reference run"))
    if headline["seed_parameters"] is not None:
        pairs.append(("parameters grown", whole(headline["seed_parameters"])))
    return tuple(pairs)


def _episodes_section(run: RunValues, place: int, prefix: str) -> Section:
    sections = tuple(
        Section(
            title=episode_heading(episode),
            anchor=f"{prefix}episode-{episode['kind']}",
            blocks=_episode_blocks(episode, place, number_),
        )
        for number_, episode in enumerate(run["episodes"])
    )
    blocks = () if sections else (Text(text="No episode has ended yet."),)
    return Section(title="Episodes", anchor=f"{prefix}episodes", blocks=blocks, sections=sections)


def _episode_blocks(episode: EpisodeValues, place: int, number_: int) -> tuple[Block, ...]:
    detail = episode["detail"]
    result = detail["result"]
    assert result is not None, "an episode of a report has ended"
    text = (
        f"{episode['title']}, ended in round {result['round']}: "
        f"return {number(result['ep_rew'])}, score {number(result['final_score'])}"
        f"{_gain_text(result['gain'])}, "
        f"{many(result['n_epochs'], 'epoch')}, {number(result['flops'], 2)} of the reference run's "
        f"FLOPs, {whole(result['host_parameters'])} parameters + "
        f"{whole(result['seed_parameters'])} grown in {many(result['n_grown'], 'seed')}."
    )
    about = "; ".join(filter(None, (detail["problem"], detail["settings"])))
    missing = Text(text="The steps were not recorded (telemetry.record_steps).")
    steps = Rows(table=episode_table(detail)) if detail["steps"] else missing
    return (
        Text(text=text),
        *((Text(text=f"The host's problem: {about}."),) if about else ()),
        Mount(drawing="episode", run=place, episode=number_, instead=(steps,)),
    )


def _gain_text(gain: float | None) -> str:
    return "" if gain is None else f" ({signed_points(gain)} over the same host left alone)"


def _learned_section(run: RunValues, place: int, prefix: str) -> Section:
    learned = run["learned"]
    tables: tuple[Block, ...] = (Text(text="No episode has ended yet."),)
    if any(part["n_episodes"] for part in learned["parts"]):
        tables = (
            *(() if learned["summary"] is None else (Text(text=learned["summary"]),)),
            *_carried_out(learned),
            Text(text="Ops per episode:"),
            Rows(table=ops_table(learned)),
            Text(text=f"Timing, in epochs of {whole(run['overview']['n_epochs'])}:"),
            Rows(table=timing_table(learned)),
            Text(text="Shares of the seeds germinated and kept:"),
            Rows(table=blueprints_table(learned)),
        )
    return Section(
        title="What the controller learned",
        anchor=f"{prefix}learned",
        blocks=(Mount(drawing="learned", run=place, instead=tables),),
    )


def _carried_out(learned: Learned) -> tuple[Block, ...]:
    """Return which actions were chosen and carried out in the latest steps, if recorded."""
    found = learned["carried_out"]
    if found["first_round"] is None or found["last_round"] is None:
        return ()
    when = span(found["first_round"], found["last_round"])
    lost = sum(one["refused"] + one["illegal"] for one in found["ops"])
    text = f"Chosen and carried out, as shares of {whole(found['n_steps'])} steps ({when}); "
    text += f"{share(lost / found['n_steps'])} of the actions were not carried out:"
    return Text(text=text), Rows(table=carried_out_table(found))


def _health_section(run: RunValues, place: int, prefix: str) -> Section:
    notices = run["health"]["notices"]  # latest first
    conclusion = run["health"]["conclusion"]
    blocks: list[Block] = [
        Text(text=conclusion["summary"]),
        Items(lines=tuple(one["text"] for one in conclusion["findings"])),
        Facts(pairs=_health_facts(run)),
    ]
    if notices:
        lines = [
            f"Round {one['round']}, {one['kind']}: {one['message']}"
            for one in reversed(notices[:N_NOTICES])
        ]
        count = f" (last {len(lines)} of {len(notices)})" if len(lines) < len(notices) else ""
        blocks += [Text(text=f"Notices{count}:"), Items(lines=tuple(lines))]
    blocks.append(Mount(drawing="health", run=place))
    return Section(title="Health", anchor=f"{prefix}health", blocks=tuple(blocks))


def _health_facts(run: RunValues) -> tuple[tuple[str, str], ...]:
    health, governor = run["health"], run["health"]["governor"]
    rejected = [str(one["round"]) for one in reversed(health["refused_updates"])]
    last = f", last in round {governor['last'][0]['round']}" if governor["last"] else ""
    reason = f": {governor['last'][0]['reason']}" if governor["last"] else ""
    pairs = [
        ("updates", whole(run["metrics"]["rounds_done"])),
        (
            "rejected updates",
            f"{len(rejected)}{f' (rounds {listed(rejected)})' if rejected else ''}",
        ),
        ("updates stopped early", whole(health["early_stops"]["total"])),
    ]
    of_growth = [
        ("hosts rolled back", f"{whole(governor['total'])}{last}{reason}"),
        ("illegal actions", _steps_text(health["illegal"], run["headline"]["illegal_share"])),
        (
            "actions refused by gates",
            _steps_text(health["refused_by_gates"], run["headline"]["refused_share"]),
        ),
    ]
    pairs += [] if _is_ppo(run) else of_growth
    speeds = [value for value in health["throughput"]["values"] if value is not None]
    if speeds:
        unit = "environment steps/s" if _is_ppo(run) else "host-epochs/s"
        pairs.append(("median speed", f"{whole(median_high(speeds))} {unit}"))
    sizes = [value for value in health["memory"]["values"] if value is not None]
    if sizes:
        pairs.append(("peak memory", memory(max(sizes))))
    pairs.append(("sessions", whole(len(run["overview"]["sessions"]))))
    return tuple(pairs)


def _steps_text(count: int, share_of_steps: float | None) -> str:
    """Return a number of steps, and their share of all steps."""
    of_all = "" if share_of_steps is None else f" ({share(share_of_steps)} of steps)"
    return f"{whole(count)}{of_all}"


def _preset_text(run: RunValues, preset: PresetView) -> str:
    """Return a preset's name and the settings of a run that differ from it."""
    settings = flat_settings(run)
    changes = [f"{name} {settings.get(name, '(unset)')}" for name in preset["differs"]]
    return f"{preset['name']}, except {', '.join(changes)}" if changes else preset["name"]


def _settings_section(run: RunValues, prefix: str) -> Section:
    overview, preset = run["overview"], run["overview"]["preset"]
    sessions = overview["sessions"]
    started = sessions[0]["started_at"] if sessions else overview["created_at"]
    pairs = [
        ("folder", run["path"]),
        *(() if preset is None else (("nearest preset", _preset_text(run, preset)),)),
        ("started", moment(started) if started else "unknown"),
        *((name, ", ".join(overview[name])) for name in ("slots", "blueprints") if overview[name]),
        ("Esper", overview["esper_version"] or "unknown"),
    ]
    for last in overview["sessions"][-1:]:
        pairs += [
            ("PyTorch", last["torch_version"]),
            ("Python", last["python_version"]),
            ("platform", last["platform"]),
            ("threads", str(last["threads"])),
        ]
    return Section(
        title="Settings and versions",
        anchor=f"{prefix}configuration",
        blocks=(
            Facts(pairs=tuple(pairs)),
            Text(text="All settings:"),
            Code(text=overview["config_toml"] or "", language="toml", is_long=True),
        ),
    )
