/** The words of the project, as a person reads them. */

/** The stages of a seed's life in their order, and what each means. */
export const STAGES = {
  dormant: "nothing lives in the slot",
  germinated: "built and attached; the host computes what it did",
  training: "learns from the host's gradient; the host does not notice",
  blending: "alpha is on its way to its target",
  holding: "alpha is at rest; its worth is measured",
  fossilized: "committed: part of the host from now on",
  pruned: "given up: alpha goes to 0, then the module is removed",
  embargoed: "the slot rests for a few epochs",
  resetting: "the slot is about to be free again",
};

const ARMS = {
  learned: "the learned controller",
  wait: "hosts left alone",
  random: "random legal growth",
  fixed: "the fixed schedule",
  heuristic: "the heuristic",
};

/** The terms of the reward in the order they are shown, and what each means. */
export const TERMS = {
  progress: "change of the score",
  settlement: "final score minus the last validation score",
  flops_cost: "price of the computing",
  rent: "rent on added parameters",
  penalty: "what the governor had to undo",
  shaping: "potential-based shaping; sums to 0",
};

/** The states of a run, and what each means. */
export const STATES = {
  running: "a process works on it",
  done: "it came to its end",
  interrupted: "it can be gone on with: esper resume",
  failed: "it stopped on an error",
  killed: "its process was ended from outside; it can be gone on with: esper resume",
  empty: "it has recorded nothing yet",
  unreadable: "its telemetry cannot be read",
};

/** Gives the name of a head, an op or a term without underscores. */
export function plain(name) {
  return String(name ?? "").replaceAll("_", " ");
}

/** Gives a controller's name as a person calls it. */
export function arm(name) {
  return ARMS[name] ?? plain(name);
}

/** Says what a step did, in a few words. */
export function stepWords(step) {
  const reads = new Set(step.relevant);
  const blueprint = reads.has("blueprint") && step.blueprint ? ` ${step.blueprint}` : "";
  const slot = reads.has("slot") && step.slot ? ` ${blueprint ? "in" : "at"} ${step.slot}` : "";
  return `${plain(step.op)}${blueprint}${slot}`;
}

/** Says why a step did not do what it set out to do, or nothing. */
export function refusalWords(step) {
  if (step.is_illegal) return "Not legal in the host's state; it counted as a wait.";
  if (step.refusal) return `Refused by a gate, so it counted as a wait: ${step.refusal}.`;
  return "";
}
