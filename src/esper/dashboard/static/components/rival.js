/** What an episode is measured against: the same host, left alone or grown by the fixed schedule. */

import { isNumber, number, signed } from "../format.js";

/** Gives the rival that an episode recorded, { name, scores, final, gain }, or null. */
export function rivalOf({ alone_scores: alone, schedule_scores: schedule, result }) {
  if (alone?.length > 0) {
    return { name: "left alone", scores: alone, final: result?.alone_final_score, gain: result?.gain };
  }
  if (schedule?.length > 0) {
    return { name: "fixed schedule", scores: schedule, final: result?.schedule_final_score, gain: result?.schedule_gain };
  }
  return null;
}

/** Says what became of the rival, and how much better the host did. */
export function rivalWords(rival) {
  if (!isNumber(rival?.gain)) return [];
  return rival.name === "left alone"
    ? [`left alone ${number(rival.final)}, gain ${signed(rival.gain)}`]
    : [`grown by the fixed schedule ${number(rival.final)}, difference ${signed(rival.gain)}`];
}

/** Says why an episode that is over has no rival, where its rewards are relative to one; otherwise nothing. */
export function missingRival({ reward, is_over: isOver }, rival) {
  if (!isOver || rival !== null || reward !== "scheduled") return null;
  return "Rewards are relative to the same host grown by the fixed schedule. This run does not have that host's curve: earlier versions of Esper did not record it.";
}
