/** What a running run is doing while it makes no records: lessons, or a trial on held-out hosts. */

import { html } from "../html.js";
import { percent } from "../format.js";
import { activityWords } from "../words.js";
import { Progress } from "./facts.js";

/** The activity before the first round, in a panel. */
export function ActivityPanel({ activity }) {
  const { title, about } = activityWords(activity);
  return html`<section class="panel activity" data-test="activity" aria-label=${title}>
    <div class="panel-head"><h2>${title}</h2><span class="muted small">${about}</span></div>
    <div class="activity-bar"><${Progress} share=${activity.share} label=${title} /><strong>${percent(activity.share)}</strong></div>
    <p class="muted small">Charts start with round 1.</p>
  </section>`;
}
