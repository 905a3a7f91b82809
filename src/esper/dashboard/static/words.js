/** Names and descriptions shown to the user. */

import { many } from "./format.js";

/** The stages of a seed in order, with descriptions. */
export const STAGES = {
  dormant: "the slot is empty",
  germinated: "attached; the host's output is unchanged",
  training: "learns from the host's gradient; the host's output is unchanged",
  blending: "alpha is moving to its target",
  holding: "alpha is at rest; its contribution is measured",
  fossilized: "committed: a permanent part of the host",
  pruned: "alpha goes to 0, then the module is removed",
  embargoed: "the slot is closed for a few epochs",
  resetting: "the slot becomes free in the next epoch",
};

const ARMS = {
  learned: "the learned controller",
  "no-growth": "no growth",
  random: "random growth",
  fixed: "the fixed schedule",
  heuristic: "the heuristic",
  progressive: "progressive growth",
};

/** What returns of training hosts are relative to, by the form of the reward; nothing for other forms. */
export const RELATIVE_TO = {
  paired: "no growth",
  scheduled: "the fixed schedule on the same hosts",
};

/** Gives the form of the reward on held-out hosts, where nothing is relative to the schedule. */
export function heldOutReward(reward) {
  return reward === "scheduled" ? "paired" : reward;
}

/** The terms of the reward in the order shown, with descriptions. */
export const TERMS = {
  progress: "change of the score",
  settlement: "final score minus the last validation score",
  flops_cost: "price of FLOPs",
  rent: "rent on added parameters",
  penalty: "penalty for rollbacks by the governor",
  shaping: "potential-based shaping; sums to 0",
};

/** The states of a run, with descriptions. */
export const STATES = {
  running: "in progress",
  done: "finished",
  interrupted: "stopped before its end; esper resume continues a run of esper train",
  failed: "stopped by an error",
  killed: "its process was killed; esper resume continues a run of esper train",
  empty: "no records yet",
  unreadable: "its files cannot be read",
};

/** Returns a name without underscores. */
export function plain(name) {
  return String(name ?? "").replaceAll("_", " ");
}

/** Returns the display name of a controller. */
export function arm(name) {
  return ARMS[name] ?? plain(name);
}

/** When a step was decided; epochs count from 1. */
export function whenWords({ decided_after: epoch }) {
  return epoch ? `after epoch ${epoch}` : "before epoch 1";
}

/** Describes what a run is doing while it makes no records: a phase in a word or two, a title, and more about it. */
export function activityWords({ purpose, arm: name, n_hosts: hosts, number, n_trials: trials }) {
  if (purpose === "lessons") {
    return { phase: "lessons", title: "Lessons before round 1",
      about: `the policy learns from ${many(hosts, "host")} that every schedule has grown` };
  }
  const who = `${arm(name)}, ${many(hosts, "host")}`;
  if (purpose === "final") return { phase: "comparing", title: "Comparing controllers", about: `${number} of ${trials}: ${who}` };
  return { phase: "evaluating", title: "Evaluating on held-out hosts", about: who };
}

/** Describes the decision of a step. */
export function stepWords(step) {
  const reads = new Set(step.relevant);
  const blueprint = reads.has("blueprint") && step.blueprint ? ` ${plain(step.blueprint)}` : "";
  const slot = reads.has("slot") && step.slot ? ` ${blueprint ? "in" : "at"} ${step.slot}` : "";
  return `${plain(step.op)}${blueprint}${slot}`;
}

/** Explains why a decision was not carried out; empty if it was. */
export function refusalWords(step) {
  if (step.is_illegal) return "Illegal in the host's state; treated as a wait.";
  if (step.refusal) return `Rejected by a gate, treated as a wait: ${step.refusal}.`;
  return "";
}
