"""Esper's words and what they mean, for `esper explain`, the documentation and the dashboard."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "host": "The network that is being trained and grown.",
    "place": (
        "Where a host can grow: layers with hidden units between them, a list of residual blocks, "
        "or a block that a module can stand beside."
    ),
    "group": (
        "Places of the same kind that grow together, such as the MLPs of all blocks, "
        "`model.layers.*.mlp`. A group has one slot."
    ),
    "slot": (
        "A named place or group that can grow. `0>2` are the units that layer 0 gives and layer 2 "
        "reads, `layers.*` a list of blocks. Decisions are about slots."
    ),
    "seed": (
        "What has been added in a slot and is not yet committed: new units, a new block, or a "
        "module beside a block."
    ),
    "blueprint": (
        "A recipe for a seed: its name, where it fits, and how it is built. `esper blueprints` "
        "lists all."
    ),
    "surgery": "A change of a model's own layers that leaves its output unchanged.",
    "widen": (
        "To add units, heads or channels to a model's own layers. Nothing reads them yet, so the "
        "output does not change."
    ),
    "deepen": (
        "To add copies of residual blocks to a model's own list of blocks. They add nothing yet, "
        "so the output does not change."
    ),
    "controller": (
        "What decides, after every epoch, whether and where a host grows: a fixed schedule, rules, "
        "or a policy trained by reinforcement learning."
    ),
    "op": (
        "What an action does: wait, germinate, set_alpha_target, prune, fossilize, advance or "
        "finish."
    ),
    "head": (
        "One of the eight choices that make up an action: slot, blueprint, style, tempo, "
        "alpha_target, alpha_speed, alpha_curve and op."
    ),
    "wait": "To leave the host as it is for another epoch.",
    "germinate": "To plant a seed in a slot. The host's output does not change.",
    "advance": "To move a seed to the next stage of its life.",
    "stage": (
        "Where a seed is in its life: germinated, training, blending, holding, then fossilized; or "
        "pruned, embargoed, resetting and dormant again."
    ),
    "training": (
        "The stage in which a module beside a block learns without any effect on the host. New "
        "units and blocks start without effect, so they skip it."
    ),
    "blend": (
        "To let a seed take effect little by little: alpha rises to its target, and host and seed "
        "train together."
    ),
    "hold": "To keep alpha at rest while a seed's contribution to the score is measured.",
    "alpha": "How strongly a seed is blended into its host, from 0 (no effect) to 1 (full effect).",
    "style": (
        "How a module's output is combined with that of its block: added, multiplied, or through "
        "a learned gate."
    ),
    "tempo": "The number of epochs in which alpha first rises to its target: 3, 5 or 8.",
    "fossilize": "To commit a seed: it is part of the host from then on.",
    "prune": "To fade a seed out and remove it.",
    "embargo": "The few epochs after a seed's removal in which its slot stays closed.",
    "dormant": "Of a slot: empty, so that a seed can be planted.",
    "finish": "To end a host's training before its budget is used up.",
    "governor": (
        "A safeguard of training: if a loss or gradient is not finite, or a loss is far outside "
        "its usual range, it restores the last good state and removes what was growing."
    ),
    "rollback": "The restoration of a host's last good state by the governor.",
    "score": "A host's result in its task's metric, such as its accuracy. More is better.",
    "return": "What a controller earns in an episode: the score minus the costs.",
    "price": (
        "The score that the FLOPs of one reference run cost. At price 0 only the score matters; "
        "the higher the price, the smaller and the shorter trained the hosts."
    ),
    "rent": "The score that added parameters cost while they are there.",
    "tolerance": "How much score a smaller model may cost before a larger one is preferred.",
    "reference run": (
        "One training of the host as it was given, for all epochs. FLOPs are shown as multiples of "
        "its FLOPs."
    ),
    "no growth": "Training a host as it was given, which everything else is compared with.",
    "baseline": "A simple controller that a learned one is compared with on the same hosts.",
    "arm": (
        "One way of training hosts in a comparison: a controller, a baseline or no growth. All "
        "arms train the same hosts."
    ),
    "verdict": (
        "What a comparison shows: better, worse, as good with fewer FLOPs, or no clear difference, "
        "judged by intervals and p-values corrected for all comparisons."
    ),
    "held-out hosts": "Hosts that a controller did not learn from.",
    "task": "What hosts learn: data, the host's architecture, a metric and a budget.",
    "prior": (
        "The distribution of random tasks and hosts that the shipped controller was trained on."
    ),
    "budget": "The epochs of a training, and what FLOPs and added parameters cost.",
    "episode": "One training of one host, from its first epoch to its last.",
    "step": "One decision about a host and the epoch that follows it.",
    "round": "One collection of steps from all hosts, and the update of the policy that follows.",
    "lessons": (
        "Training before the first round, in which a policy learns from hosts that were grown by "
        "fixed schedules."
    ),
    "shard": "The hosts that one worker collects steps from.",
    "mask": "Which choices of an action are legal. Illegal ones have probability zero.",
    "Tamiyo": "The code name of what decides: observations, policies and controllers.",
    "Simic": "The code name of the reinforcement learning package, which works without growth too.",
}
"""The definition of each word, in the order of a reader's first questions."""

FORMS: dict[str, str] = {
    "blending": "blend",
    "holding": "hold",
    "fossilized": "fossilize",
    "fossil": "fossilize",
    "pruned": "prune",
    "germinated": "germinate",
    "embargoed": "embargo",
    "resetting": "embargo",
    "no-growth": "no growth",
    "set_alpha_target": "alpha",
    "alpha_target": "alpha",
    "alpha_speed": "alpha",
    "alpha_curve": "alpha",
    "reward": "return",
    "environment": "episode",
    "policy": "controller",
    "FLOPs": "reference run",
}
"""Other words and forms, and the word that explains each."""


def find_word(word: str) -> str | None:
    """Return the glossary's word for a word in any case, form or plural; None if there is none."""
    entries = {name.lower(): name for name in GLOSSARY}
    entries |= {form.lower(): name for form, name in FORMS.items()}
    lowered = " ".join(word.replace("_", " ").split()).lower()
    for form in (word.lower(), lowered, lowered.replace("-", " "), lowered.removesuffix("s")):
        if form in entries:
            return entries[form]
    return None
