// Each part of the page, from the numbers that it shows.

import { bytes, bytesParts, clock, count, dateAndClock, duration, measure, percent } from "./format.js";
import { Rows, make, setText } from "./table.js";

const byId = (id) => document.getElementById(id);
const RING_FULL = 0.9;
const DEGRADED = ["", ", chunks written faster", ", chunks written uncompressed"]; // codecs/degrade.py
const STALL_S = 5;
const SOON_FULL_S = 3600;
const DISK_FULL = "disk_full"; // of the daemon, and of an acquisition

export const wordsOf = (state) => state.replaceAll("_", " ");

export function showHeader(status) {
  document.title = `${status.host} · shardwright`;
  setText(byId("host"), status.host ?? "–");
  setText(byId("software"), ` · ${status.software ?? ""}`);
  setText(byId("uptime"), duration(status.uptime_s));
}

export function showNumbers({ sums, now, disks }) {
  setText(byId("frame-rate"), measure(now.frames_per_s));
  setText(byId("frames-received"), `${count(sums.frames_received)} received`);
  const [rate, rateUnit] = bytesParts(now.received_bytes_per_s);
  setText(byId("byte-rate"), rate);
  setText(byId("byte-rate-unit"), rateUnit ? `${rateUnit}/s` : "");
  const ratio = sums.bytes_stored ? `, ${measure(sums.bytes_raw / sums.bytes_stored)} × packed` : "";
  setText(byId("bytes-received"), `${bytes(sums.bytes_received)}${ratio}`);
  setText(byId("frames-durable"), count(sums.frames_durable));
  setText(byId("frames-waiting"), `${count(sums.frames_stored)} stored`);
  showNotStored(sums);
  setText(byId("ring-fill"), percent(now.ring));
  const written = DEGRADED[sums.degrade_level] ?? "";
  setText(byId("ring-frames"), sums.ring_frames ? `${count(sums.ring_used)} of ${count(sums.ring_frames)} frames${written}` : "no camera is connected");
  byId("ring-tile").dataset.level = now.ring >= RING_FULL || written ? "warning" : "";
  showDisk(disks);
}

// Each frame that is not stored has one of these reasons; "missing" would count the places of the dropped, late and lost ones once more.
const NOT_STORED = ["skipped", "dropped", "lost", "late", "duplicate"];
const HARM = ["dropped", "lost", "late"]; // pixels that the camera took are gone; the others are the camera's side's own doing

// The health of the daemon: the colour of the header, and the same in words, since a user may not see colours.
export function healthOf(sums) {
  const total = (reasons) => reasons.reduce((sum, reason) => sum + sums[`frames_${reason}`], 0);
  if (!total(NOT_STORED)) return { level: "", words: "" };
  const harm = HARM.filter((reason) => sums[`frames_${reason}`]);
  return harm.length ? { level: "bad", words: `, frames ${harm.join(" and ")}` } : { level: "warning", words: ", frames not stored" };
}

function showNotStored(sums) {
  const reasons = NOT_STORED.map((reason) => [reason, sums[`frames_${reason}`]]);
  const total = reasons.reduce((sum, [, n]) => sum + n, 0);
  setText(byId("frames-not-stored"), count(total));
  setText(byId("why-not-stored"), total ? reasons.filter(([, n]) => n).map(([reason, n]) => `${count(n)} ${reason}`).join(", ") : "every frame is there");
  byId("not-stored-tile").dataset.level = total ? "bad" : "";
}

export function showDisk(disks) {
  const disk = disks.find((each) => each.role === "root") ?? disks[0];
  if (!disk) return;
  const known = Number.isFinite(disk.free_bytes); // not before the first look, nor while the disk does not answer
  const [free, unit] = bytesParts(disk.free_bytes);
  setText(byId("disk-free"), free);
  setText(byId("disk-free-unit"), unit);
  const usable = disk.free_bytes - (disk.low_water_bytes ?? 0);
  const left_s = disk.full_in_s;
  const low = known && usable <= 0;
  const until = Number.isFinite(left_s) ? `full in ${duration(left_s)}` : `of ${bytes(disk.total_bytes)}`;
  setText(byId("disk-until"), low ? "below the low-water mark" : known ? until : "not known");
  byId("disk-tile").dataset.level = low ? "bad" : Number.isFinite(left_s) && left_s < SOON_FULL_S ? "warning" : "";
}

// [the problem of the daemon as a whole, the detail of it that keeps changing]; both empty without a problem.
export function problemOf(status) {
  const problems = [diskFull(status), stuck(status)].filter(Boolean);
  return { text: problems.map(([text]) => text).join(" "), detail: problems.map(([, detail]) => detail).join(" ") };
}

function diskFull({ acquisitions = [], disks = [] }) {
  const waiting = acquisitions.filter((each) => each.state === DISK_FULL).map((each) => each.name);
  if (!waiting.length) return null;
  const room = disks.filter((disk) => Number.isFinite(disk.free_bytes)).map((disk) => `${bytes(disk.free_bytes)} are free in ${disk.path}.`);
  return [`The disk is full: ${waiting.join(", ")} ${waiting.length > 1 ? "wait" : "waits"} for room, and so do the cameras. Free some space.`, room.join(" ")];
}

function stuck({ stall_s }) {
  if (!(stall_s > STALL_S)) return null;
  return ["Something is stuck, most likely a disk. Frames wait in memory.", `It has taken ${duration(stall_s)} by now.`];
}

export function runningTable() {
  const progress = (cell, item) => {
    const bar = cell.querySelector("progress") ?? cell.appendChild(make("progress", { "aria-label": `Stored of ${item.name}` }));
    const words = cell.querySelector("span") ?? cell.appendChild(make("span"));
    bar.hidden = !item.frames_expected;
    bar.max = item.frames_expected || 1;
    bar.value = Math.min(item.frames_stored, bar.max);
    setText(words, item.frames_expected ? `${count(item.frames_stored)} of ${count(item.frames_expected)}` : count(item.frames_stored));
  };
  return new Rows(byId("running"), {
    key: (item) => item.path,
    numbers: [4, 5, 6, 7, 8],
    fill: { 3: progress },
    cells: (item) => [
      { text: item.name, title: item.path },
      item.stream,
      { text: wordsOf(item.state), class: item.state === DISK_FULL ? "bad" : "", title: item.client ? `from ${item.client.host}, process ${item.client.pid}` : "no client is connected" },
      "",
      measure(item.rate_hz),
      measure(item.bytes_per_s / 1e6),
      count(item.frames_in_flight),
      { text: count(item.frames_missing), class: item.frames_missing ? "bad" : "" },
      duration(item.since_s),
    ],
  });
}

export function finishedTable(viewer) {
  const link = (cell, item) => {
    if (cell.firstChild || item.unreadable) return;
    const address = viewer() === null ? null : viewer() + encodeURIComponent(item.store);
    if (address === null) cell.append(make("span", { class: "quiet", title: "The viewer comes with the extra viewer: pip install 'shardwright[viewer]'" }, "–"));
    else cell.append(make("a", { href: address, target: "_blank", rel: "noopener", "aria-label": `Open ${item.name} in neuroglancer, new tab` }, "Open"));
  };
  return new Rows(byId("finished"), {
    key: (item) => item.path,
    numbers: [1, 2],
    fill: { 5: link },
    cells: (item) => [
      { text: item.name, title: item.path },
      count(item.frames),
      { text: count(item.frames_missing), class: item.frames_missing ? "bad" : "" },
      item.unreadable ? { text: "cannot be read", title: item.unreadable, class: "bad" } : imageCell(item),
      dateAndClock(new Date(item.finished_s * 1000)),
      "",
    ],
  });
}

// Of several images the first one is described, and opened.
function imageCell(item) {
  const each = `${item.shape.join(" × ")} ${item.dtype}`;
  if (item.images === 1) return { text: each, title: item.axes.join(", ") };
  return { text: `${count(item.images)} images, ${item.image}: ${each}`, title: item.axes.join(", ") };
}

const NOT_FACTS = new Set(["number", "timestamp", "level", "event", "text", "exception"]);

function factsOf(event) {
  return Object.entries(event)
    .filter(([name]) => !NOT_FACTS.has(name))
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(" · ");
}

export function eventsTable() {
  return new Rows(byId("events"), {
    key: (event) => event.number,
    cells: (event) => [
      { text: clock(new Date(event.timestamp)), title: event.timestamp },
      { text: event.level, class: `level ${event.level}` },
      { text: event.text, title: `${event.event} · ${factsOf(event)}` },
    ],
  });
}

export function showFacts(status) {
  const { memory = {}, compaction = {}, disks = [] } = status;
  const compacting = compaction.running ? `${compaction.paused ? "paused" : "running"}: ${compaction.running.split("/").pop()}` : "idle";
  const facts = {
    "Output root": status.output_root,
    Configuration: status.config,
    Endpoints: (status.endpoints ?? []).join(", "),
    Clients: count(status.clients),
    Memory: `${bytes(memory.used_bytes)} of ${bytes(memory.budget_bytes)}`,
    ...Object.fromEntries(disks.map((disk) => [`Disk (${disk.role})`, `${bytes(disk.free_bytes)} free of ${bytes(disk.total_bytes)}, ${disk.path}`])),
    Compaction: compaction.enabled ? `${compacting}; ${count(compaction.queued)} waiting, ${count(compaction.done)} done, ${count(compaction.failed)} failed` : compaction.died ? "ended by an error" : "off",
    "Foreign messages": count(status.foreign_messages),
    "Longest call now": `${measure(status.stall_s)} s`,
    Process: String(status.pid),
  };
  const list = byId("facts");
  for (const [name, value] of Object.entries(facts)) {
    let entry = [...list.children].find((each) => each.firstElementChild.textContent === name);
    entry ??= list.appendChild(make("div", {}, make("dt", {}, name), make("dd")));
    setText(entry.lastElementChild, value ?? "–");
  }
}
