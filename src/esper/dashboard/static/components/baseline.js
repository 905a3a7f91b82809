/** What an episode is measured against: the same host with no growth, or grown by the fixed schedule. */

import { isNumber, number, signed } from "../format.js";

/** Gives the baseline that an episode recorded, { name, scores, final, gain }, or null. */
export function baselineOf({ no_growth_scores: alone, schedule_scores: schedule, result }) {
  if (alone?.length > 0) {
    return { name: "no growth", scores: alone, final: result?.no_growth_final_score, gain: result?.gain };
  }
  if (schedule?.length > 0) {
    return { name: "fixed schedule", scores: schedule, final: result?.schedule_final_score, gain: result?.schedule_gain };
  }
  return null;
}

/** Says what became of the baseline, and how much better the host did. */
export function baselineWords(baseline) {
  if (!isNumber(baseline?.gain)) return [];
  return baseline.name === "no growth"
    ? [`no growth ${number(baseline.final)}, gain ${signed(baseline.gain)}`]
    : [`grown by the fixed schedule ${number(baseline.final)}, difference ${signed(baseline.gain)}`];
}

/** Says why an episode that is over has no baseline, where its rewards are relative to one; otherwise nothing. */
export function missingBaseline({ reward, is_over: isOver }, baseline) {
  if (!isOver || baseline !== null || reward !== "scheduled") return null;
  return "Rewards are relative to the same host grown by the fixed schedule. This run does not have that host's curve: earlier versions of Esper did not record it.";
}
