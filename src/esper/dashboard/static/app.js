/** The frame around every screen: the bar, the tabs of a run, and which screen is shown. */

import { html, useEffect, useRef } from "./html.js";
import { ConnectionBanner, ConnectionState, Mark, ThemeButton } from "./components/bar.js";
import { Help } from "./components/help.js";
import { useLiveRun } from "./live.js";
import { address, decode, hasScreen, useAddress } from "./router.js";
import { CompareScreen } from "./views/compare.js";
import { EnvironmentsScreen } from "./views/environments.js";
import { Gate } from "./views/gate.js";
import { GrowthScreen } from "./views/growth.js";
import { HealthScreen } from "./views/health.js";
import { LearnedScreen } from "./views/learned.js";
import { RunScreen } from "./views/run.js";
import { RunsScreen } from "./views/runs.js";
import { SettingsScreen } from "./views/settings.js";
import { Empty } from "./components/messages.js";
import { StagePatterns } from "./components/stages.js";

const TABS = {
  "": ["Overview", RunScreen],
  growth: ["Growth", GrowthScreen],
  environments: ["Environments", EnvironmentsScreen],
  health: ["Health", HealthScreen],
  learned: ["Learned", LearnedScreen],
  settings: ["Settings", SettingsScreen],
};

/** The whole page. */
export function App() {
  const { parts, options } = useAddress();
  const run = parts[0] === "run" ? parts[1] : null;
  const main = useRef(null);
  const place = parts.slice(0, 3).join("/");
  useFocusOnArrival(main, place);
  useEffect(() => {
    document.title = title(parts);
  }, [place]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="bar">
      <a class="bar-home" href="#/"><${Mark} />Esper</a>
      ${run && html`<span class="bar-run" title=${run}>${run}</span><${Tabs} run=${run} current=${parts[2] ?? ""} />`}
      <div class="bar-rest"><${ConnectionState} /><${Help} /><${ThemeButton} /></div>
    </header>
    <${ConnectionBanner} />
    <${StagePatterns} />
    <main class="screen" id="main" tabindex="-1" ref=${main}><${Screen} ...${{ parts, options }} /></main>`;
}

function Tabs({ run, current }) {
  const nav = useRef(null);
  useEffect(() => {
    // A narrow window does not have room for all tabs.
    const [box, tab] = [nav.current, nav.current.querySelector("[aria-current]")];
    if (tab) box.scrollLeft = tab.offsetLeft - box.offsetLeft - (box.clientWidth - tab.offsetWidth) / 2;
  }, [current]);
  const live = useLiveRun(run) ?? {};
  const shown = Object.entries(TABS).filter(([name]) => hasScreen(name, live));
  return html`<nav class="tabs" aria-label="Screens of this run" ref=${nav}>
    ${shown.map(([name, [label]]) => html`<a class="tab" key=${name}
      href=${address(name ? ["run", run, name] : ["run", run])}
      aria-current=${name === current ? "page" : null}>${label}</a>`)}
  </nav>`;
}

function Screen({ parts, options }) {
  if (parts.length === 0) return html`<${RunsScreen} />`;
  if (parts[0] === "compare") return html`<${CompareScreen} ids=${idsOf(options)} />`;
  const [, Shown] = (parts[0] === "run" && parts[1] && TABS[parts[2] ?? ""]) || [];
  if (Shown) {
    return html`<${Gate} id=${parts[1]}>
      <${Shown} key=${parts[1]} id=${parts[1]} rest=${parts.slice(3)} options=${options} />
    <//>`;
  }
  return html`<${Empty} title="No such page."><a href="#/">All runs</a><//>`;
}

function idsOf(options) {
  return (options.runs ?? "").split(",").filter(Boolean).map(decode);
}

function title(parts) {
  if (parts[0] === "compare") return "Compare · Esper";
  if (parts[0] !== "run") return "Runs · Esper";
  const [label] = TABS[parts[2] ?? ""] ?? ["Esper"];
  return `${parts[1]} · ${label} · Esper`;
}

/** Moves the focus to another screen's content, where the keyboard continues. */
function useFocusOnArrival(main, place) {
  const last = useRef(place);
  useEffect(() => {
    if (last.current === place) return;
    last.current = place;
    window.scrollTo(0, 0);
    main.current.focus({ preventScroll: true });
  }, [place]);
}
