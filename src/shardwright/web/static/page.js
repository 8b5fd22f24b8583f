// The status page: asks once a second what the daemon does, and shows it. Read-only; asks nothing while it is frozen or out of sight.
//
//   api/status              every second    numbers, the newest point of the plots, running acquisitions
//   api/history             when points are missing: at first, after it was frozen, of another daemon
//   api/events?after=N      every second    events
//   api/stores              every 3 s, and when an acquisition ends
//   api/preview/NAME.png    every second for each running acquisition

import { duration } from "./format.js";
import { Plot, SPAN_S } from "./plot.js";
import { Previews } from "./previews.js";
import { setText } from "./table.js";
import { eventsTable, finishedTable, healthOf, problemOf, runningTable, showFacts, showHeader, showNumbers, wordsOf } from "./views.js";

const EVERY_MS = 1000;
const STORES_EVERY_MS = 3000;
const TIMEOUT_MS = 5000;
const MOST_EVENTS = 200;
const MOST_APART_S = 3;

const byId = (id) => document.getElementById(id);
const previews = new Previews(byId("previews-section"), byId("previews"));
const running = runningTable();
const finished = finishedTable(() => viewer);
const eventRows = eventsTable();
const plots = [
  new Plot(byId("plot-rate"), { name: "Frames per second", unit: "", series: [scaled("frames_per_s", 1)], least: 10 }),
  new Plot(byId("plot-ring"), { name: "Ring", unit: "% full", series: [scaled("ring", 100)], least: 100, most: 100 }),
  new Plot(byId("plot-latency"), { name: "Stored after, median and 99 %", unit: "ms", series: [scaled("median_s", 1000), scaled("most_s", 1000)], least: 10 }),
  new Plot(byId("plot-disk"), { name: "Disk", unit: "MB/s", series: [scaled("stored_bytes_per_s", 1e-6)], least: 10 }),
];

let points = []; // of the last minutes, oldest first
let viewer = null;
let pid = null;
let events = []; // newest first
let storesAsked_ms = -Infinity;
let answered_ms = null;
let paused = false;
let names = null; // of the acquisitions that ran at the last look

function scaled(name, factor) {
  return (point) => (point[name] === null ? null : point[name] * factor);
}

async function ask(address) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error?.message ?? `${answer.status} ${answer.statusText}`);
}

// For those who do not see the page: what changed, not every number.
function say(text) {
  setText(byId("said"), text);
}

function setState(state, { level, words } = { level: "", words: "" }) {
  if (document.body.dataset.state === state && byId("state").textContent === state + words) return;
  document.body.dataset.state = state;
  document.body.dataset.health = level;
  setText(byId("state"), state + words);
  say(`The daemon is ${state}${words}.`);
}

// `text` is read out whenever it changes; `detail`, such as for how long by now, can only be looked at.
function showProblem(text, detail) {
  byId("problem").hidden = !text;
  setText(byId("problem-text"), text);
  setText(byId("problem-detail"), detail);
}

async function renewPoints(now) {
  const last_s = points.at(-1)?.time_s ?? -Infinity;
  const apart_s = now.time_s - last_s;
  if (apart_s >= 0 && apart_s <= MOST_APART_S) points.push(now);
  else points = [...(await ask("api/history")).points.filter((point) => point.time_s < now.time_s), now];
  points = points.filter((point) => point.time_s >= now.time_s - SPAN_S - MOST_APART_S);
}

async function renewStatus() {
  const status = await ask("api/status");
  answered_ms = performance.now();
  if (status.pid !== pid) {
    pid = status.pid;
    events = [];
  }
  await renewPoints(status.now);
  showHeader(status);
  showNumbers(status);
  showFacts(status);
  for (const plot of plots) plot.show(points);
  running.show(status.acquisitions);
  setText(byId("running-count"), status.acquisitions.length ? String(status.acquisitions.length) : "");
  previews.show(status.acquisitions);
  const waits = status.waits_for;
  setState(wordsOf(status.state), waits ? { level: "", words: `: ${waits}` } : healthOf(status.sums));
  announce(status.acquisitions.map((each) => each.name));
  return status;
}

function announce(now) {
  if (names !== null) {
    const begun = now.filter((name) => !names.includes(name));
    const ended = names.filter((name) => !now.includes(name));
    if (begun.length) say(`${begun.join(", ")}: acquisition begun.`);
    if (ended.length) {
      say(`${ended.join(", ")}: acquisition ended.`);
      storesAsked_ms = -Infinity;
    }
  }
  names = now;
}

async function renewEvents() {
  const answer = await ask(`api/events?after=${events[0]?.number ?? 0}`);
  if (!answer.events.length && events.length) return;
  events = [...answer.events.toReversed(), ...events].slice(0, MOST_EVENTS);
  eventRows.show(events);
}

async function renewStores() {
  if (performance.now() - storesAsked_ms < STORES_EVERY_MS) return;
  storesAsked_ms = performance.now();
  const answer = await ask("api/stores");
  viewer = answer.viewer;
  finished.show(answer.stores);
  setText(byId("finished-count"), answer.stores.length ? `${answer.more ? "newest " : ""}${answer.stores.length}` : "");
}

async function look() {
  try {
    const status = await renewStatus();
    const parts = await Promise.allSettled([renewEvents(), renewStores()]);
    const late = parts.find((part) => part.status === "rejected");
    const { text, detail } = problemOf(status);
    showProblem([text, late && `Not everything here is up to date: ${late.reason.message}.`].filter(Boolean).join(" "), detail);
  } catch (error) {
    setState("not answering");
    const since = answered_ms === null ? "" : `The numbers are ${duration((performance.now() - answered_ms) / 1000)} old.`;
    showProblem(`The daemon does not answer: ${error.message}.`, since);
  }
}

async function watch() {
  for (;;) {
    const begun_ms = performance.now();
    const resting = paused || document.hidden;
    document.body.toggleAttribute("data-resting", resting);
    if (!resting) await look();
    const left_ms = EVERY_MS - (performance.now() - begun_ms);
    await new Promise((resume) => setTimeout(resume, Math.max(left_ms, EVERY_MS / 4)));
  }
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  setText(byId("pause"), paused ? "Go on" : "Freeze the page");
  say(paused ? "The page is frozen." : "The page goes on.");
});

watch();
