"""The model card of a saved controller: what it is, how it was trained, what it was shown to do.

Every number comes from the controller's own file or from files of evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esper.evidence.claims import Finding, headline, weigh
from esper.evidence.files import EvidenceFile
from esper.evidence.results import Evidence
from esper.evidence.text import facts as facts_of
from esper.evidence.text import results_table

NOT_EVALUATED = "It has not been evaluated, so nothing is known about its performance."


def write_card(facts: Mapping[str, Any], evaluations: Sequence[EvidenceFile]) -> str:
    """Return the card in Markdown.

    Args:
        facts: The contents of ``controller.json``.
        evaluations: The results of ``esper evaluate``, on the task it learned on and on others.
    """
    name, task = facts["name"], facts["origin"].get("task")
    entries = [entry for file in evaluations for entry in file.entries]
    own = [entry for entry in entries if entry.task == task]
    others = [entry for entry in entries if entry.task != task]
    parts = [
        f"# Controller {name}",
        _identity(facts),
        "## How it was trained",
        _training(facts),
        "## What it was shown to do",
        *(_shown(own, name) or [NOT_EVALUATED]),
        "## What it was not shown to do",
        *(_not_shown(own) or ([] if own else [NOT_EVALUATED])),
        "No hosts, data, budgets or prices other than those above were tested.",
        "## Transfer to other tasks, without retraining",
        *(_transfer(others, name) or ["No other task was tested."]),
        "## License and data",
        _license(task),
    ]
    return "\n\n".join(parts) + "\n"


def _identity(facts: Mapping[str, Any]) -> str:
    sizes = facts["policy"]
    mode = "takes the likeliest action" if facts["deterministic"] else "samples its actions"
    names = ", ".join(facts["blueprints"])
    return (
        "A recurrent policy that controls the growth of a network while it trains. After each "
        "epoch it observes the training and waits, germinates a seed, advances one, changes its "
        "alpha, prunes it, fossilizes it, or finishes the training. Its weights are shared by all "
        "slots, so it works with any number of them.\n\n"
        f"- sizes: slots {sizes['slot_size']}, features {sizes['feature_size']}, LSTM "
        f"{sizes['lstm_size']}; it {mode}\n"
        f"- blueprints that it can grow: {names}\n"
        f"- format {facts['format']}, saved by Esper {facts['esper']} as safetensors and JSON, "
        "without pickle"
    )


def _training(facts: Mapping[str, Any]) -> str:
    origin, budget = facts["origin"], facts["budget"]
    if "command" not in origin:
        return "Its training is not recorded."
    options = "".join(f", {name} {value}" for name, value in origin["task_options"].items())
    steps = origin["rounds"] * origin["envs"] * origin["n_steps"]
    return (
        f"By PPO on `{origin['task']}`{options}: {origin['rounds']} rounds of {origin['envs']} "
        f"hosts and {origin['n_steps']} steps, {steps:,} host epochs in all, seed "
        f"{origin['seed']}. Hosts had {budget['n_epochs']} epochs; the FLOPs of one reference run "
        f"cost {budget['flop_price']:g} of score, and doubling the reference host's parameters "
        f"costs {budget['parameter_rent']:g}. The policy with the best evaluation on held-out "
        "hosts was kept. To train it again:\n\n"
        f"```sh\n{origin['command']}\n```"
    )


def _shown(entries: Sequence[Evidence], name: str) -> list[str]:
    """Return the results of evaluations and the claims that they support, price by price."""
    parts: list[str] = []
    for number, evidence in enumerate(entries):
        findings = weigh(evidence)
        claims = [_line(one) for one in findings if one.is_claim]
        parts += [
            *_describe(evidence, name, entries[:number]),
            results_table(evidence).to_markdown().rstrip(),
            headline(evidence, findings),
        ]
        parts += ["\n".join(claims)] if claims else []
    return parts


def _not_shown(entries: Sequence[Evidence]) -> list[str]:
    """Return the claims that are not supported, price by price."""
    parts: list[str] = []
    for evidence in entries:
        lines = [_line(one) for one in weigh(evidence) if not one.is_claim]
        if lines:
            parts += [_title(evidence), "\n".join(lines)]
    return parts


def _transfer(entries: Sequence[Evidence], name: str) -> list[str]:
    parts: list[str] = []
    for number, evidence in enumerate(entries):
        findings = weigh(evidence)
        parts += _describe(evidence, name, entries[:number])
        parts.append(headline(evidence, findings))
        parts.append("\n".join(map(_line, findings)))
    return parts


def _describe(evidence: Evidence, name: str, before: Sequence[Evidence]) -> list[str]:
    """Return how an evaluation was made, in full unless an earlier one differs only in price."""
    parts = [_title(evidence)]
    if any(_key(one) == _key(evidence) for one in before):
        return parts
    lines = list(facts_of(evidence))
    if name in evidence.runs and len(evidence.runs) > 1:
        lines.append(f"This controller is from run {name}.")
    if evidence.command:
        lines.append(f"To reproduce: `{evidence.command}`")
    return [*parts, "\n".join(f"- {line}" for line in lines)]


def _key(evidence: Evidence) -> tuple[Any, ...]:
    return evidence.task, dict(evidence.task_options), evidence.runs, evidence.n_hosts


def _title(evidence: Evidence) -> str:
    options = "".join(f", {name} {value}" for name, value in evidence.task_options.items())
    return f"On `{evidence.task}`{options}, at price {evidence.price:g}:"


def _line(finding: Finding) -> str:
    return f"- {finding.sentence[:1].upper()}{finding.sentence[1:]}."


def _license(task: object) -> str:
    data = f"It learned from the data of the task `{task}`, which have their own terms."
    if str(task).startswith("digits"):
        data = (
            "It learned from the handwritten digits that ship with Esper; `tasks/data/README.md` "
            "in the package names their source."
        )
    return f"{data} The weights are licensed like Esper, under MIT."
