/** Colours that people with any colour vision can tell apart, for light and for dark. */

/** The series of a chart, in the order they are used. */
const SERIES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8558a", "#b07a00", "#2f8fc4", "#5c5c5c", "#7a6a00"],
  dark: ["#56b4e9", "#e8853a", "#2fc49a", "#d894bc", "#e6b422", "#8fcdf2", "#a6a6a6", "#d6cf4a"],
};

/** Dashes of the series, so that they differ without colour too. */
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2], [1, 4], [6, 2, 1, 2, 1, 2]];

/** The stages of a seed's life; each has a pattern too (see components/patterns.js). */
export const STAGE_COLOURS = {
  dormant: "#9aa0a6",
  germinated: "#f0e442",
  training: "#56b4e9",
  blending: "#e69f00",
  holding: "#0072b2",
  fossilized: "#009e73",
  pruned: "#cc79a7",
  embargoed: "#8a8f94",
  resetting: "#b9bdc1",
};

/** The terms of the reward. */
export const TERM_COLOURS = {
  progress: "#009e73",
  settlement: "#0072b2",
  flops_cost: "#d55e00",
  rent: "#e69f00",
  penalty: "#cc79a7",
  shaping: "#8a8f94",
};

/** Gives the colour of the n-th series. */
export function seriesColour(index, theme) {
  const colours = SERIES[theme] ?? SERIES.light;
  return colours[index % colours.length];
}

/** Gives the dashes of the n-th series. */
export function seriesDash(index) {
  return DASHES[index % DASHES.length];
}
