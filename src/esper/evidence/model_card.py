"""The card of a saved controller: what it is, how it came about, what it was shown to do.

Every number is read from the controller's own file or from the files of evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from esper.evidence.claims import Finding, headline, weigh
from esper.evidence.files import EvidenceFile
from esper.evidence.results import Evidence
from esper.evidence.text import facts as facts_of
from esper.evidence.text import results_table

NOT_EVALUATED = "It was not evaluated: nothing is known of how it compares with anything."


def write_card(facts: Mapping[str, Any], evaluations: Sequence[EvidenceFile]) -> str:
    """Return the card in Markdown.

    Args:
        facts: What ``controller.json`` says.
        evaluations: What ``esper evaluate`` measured, on the task that it learned on and on others.
    """
    name, task = facts["name"], facts["origin"].get("task")
    own = [one for file in evaluations for one in file.entries if one.task == task]
    others = [one for file in evaluations for one in file.entries if one.task != task]
    parts = [
        f"# Controller {name}",
        _identity(facts),
        "## How it was trained",
        _training(facts),
        "## What it was shown to do",
        *(_shown(own, name) or [NOT_EVALUATED]),
        "## What it was not shown to do",
        *(_not_shown(own) or ([] if own else [NOT_EVALUATED])),
        "Nothing was tried on hosts, data, budgets or prices that are not named here.",
        "## Transfer to other tasks, without training again",
        *(_transfer(others, name) or ["No other task was tried."]),
        "## Licence and data",
        _licence(task),
    ]
    return "\n\n".join(parts) + "\n"


def _identity(facts: Mapping[str, Any]) -> str:
    sizes = facts["policy"]
    way = "takes the likeliest action" if facts["deterministic"] else "draws its actions"
    names = ", ".join(facts["blueprints"])
    return (
        "A recurrent policy that steers the growth of a network while it trains: each epoch it "
        "looks at the training and waits, plants a seed, lets one advance, changes how strongly "
        "one is blended in, keeps one, prunes one, or ends the training. Its weights are the same "
        "for any number of slots.\n\n"
        f"- sizes: slots {sizes['slot_size']}, features {sizes['feature_size']}, LSTM "
        f"{sizes['lstm_size']}; it {way}\n"
        f"- it knows {len(facts['blueprints'])} blueprints by name: {names}\n"
        f"- format {facts['format']}, saved by Esper {facts['esper']}; safetensors and JSON, "
        "nothing is unpickled"
    )


def _training(facts: Mapping[str, Any]) -> str:
    origin, budget = facts["origin"], facts["budget"]
    if "command" not in origin:
        return "Where it comes from is not recorded."
    options = "".join(f", {name} {value}" for name, value in origin["task_options"].items())
    steps = origin["rounds"] * origin["envs"] * origin["n_steps"]
    return (
        f"By PPO on `{origin['task']}`{options}: {origin['rounds']} rounds of {origin['envs']} "
        f"hosts and {origin['n_steps']} steps, {steps:,} host epochs in all, seed "
        f"{origin['seed']}. Hosts had {budget['n_epochs']} epochs; the FLOPs of one reference run "
        f"cost {budget['flop_price']:g} of score, and as many added parameters as the reference "
        f"host has {budget['parameter_rent']:g}. The best policy of its evaluations on held-out "
        "hosts was kept. This trains it again:\n\n"
        f"```sh\n{origin['command']}\n```"
    )


def _shown(entries: Sequence[Evidence], name: str) -> list[str]:
    """Return what evaluations measured, with all claims that they support, price by price."""
    parts: list[str] = []
    for number, evidence in enumerate(entries):
        findings = weigh(evidence)
        claims = [_line(one) for one in findings if one.is_claim]
        parts += [
            *_measured(evidence, name, entries[:number]),
            results_table(evidence).to_markdown().rstrip(),
            headline(evidence, findings),
        ]
        parts += ["\n".join(claims)] if claims else []
    return parts


def _not_shown(entries: Sequence[Evidence]) -> list[str]:
    """Return the claims that were tried and are not supported, price by price."""
    parts: list[str] = []
    for evidence in entries:
        lines = [_line(one) for one in weigh(evidence) if not one.is_claim]
        if lines:
            parts += [_place(evidence), "\n".join(lines)]
    return parts


def _transfer(entries: Sequence[Evidence], name: str) -> list[str]:
    parts: list[str] = []
    for number, evidence in enumerate(entries):
        findings = weigh(evidence)
        parts += _measured(evidence, name, entries[:number])
        parts.append(headline(evidence, findings))
        parts.append("\n".join(map(_line, findings)))
    return parts


def _measured(evidence: Evidence, name: str, before: Sequence[Evidence]) -> list[str]:
    """Return on what an evaluation was made, and of whom; in full the first time."""
    parts = [_place(evidence)]
    if any(_ground(one) == _ground(evidence) for one in before):
        return parts
    lines = list(facts_of(evidence))
    if name in evidence.runs and len(evidence.runs) > 1:
        lines.append(f"This controller is that of {name}, one of these runs.")
    if evidence.command:
        lines.append(f"This measures it again: `{evidence.command}`")
    return [*parts, "\n".join(f"- {line}" for line in lines)]


def _ground(evidence: Evidence) -> tuple[Any, ...]:
    """Return what decides who was measured on what, but the price."""
    return evidence.task, dict(evidence.task_options), evidence.runs, evidence.n_hosts


def _place(evidence: Evidence) -> str:
    """Return where an evaluation was made, as a line."""
    options = "".join(f", {name} {value}" for name, value in evidence.task_options.items())
    return f"On `{evidence.task}`{options}, at price {evidence.price:g}:"


def _line(finding: Finding) -> str:
    return f"- {finding.sentence[:1].upper()}{finding.sentence[1:]}."


def _licence(task: object) -> str:
    data = f"It learned from the data of the task `{task}`, which have terms of their own."
    if str(task).startswith("digits"):
        data = (
            "It learned from the handwritten digits that come with Esper; `tasks/data/README.md` "
            "in the package says where they are from."
        )
    return f"{data} The weights come under the licence of Esper, MIT."
