// Numbers as people read them. Every function takes plain numbers and gives text.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(n) {
  return Number.isFinite(n) ? whole.format(n) : "–";
}

// Three significant digits where they say something, thousands grouped.
export function measure(n) {
  if (!Number.isFinite(n)) return "–";
  if (n === 0) return "0";
  const size = Math.abs(n);
  return size >= 100 ? whole.format(n) : n.toFixed(size >= 10 ? 1 : 2);
}

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

// [number, unit]
export function bytesParts(n) {
  if (!Number.isFinite(n)) return ["–", ""];
  let step = 0;
  while (Math.abs(n) >= 1000 && step < BYTE_UNITS.length - 1) {
    n /= 1000;
    step += 1;
  }
  return [step ? measure(n) : count(n), BYTE_UNITS[step]];
}

export function bytes(n) {
  return bytesParts(n).join(" ").trim();
}

// 42 s, 2 min 3 s, 33 min, 3 h 20 min, 5 d 2 h
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.floor(seconds));
  const [d, h, min] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${min} min`;
  if (min >= 10) return `${min} min`;
  if (min) return `${min} min ${s % 60} s`;
  return `${s} s`;
}

export function percent(part) {
  return Number.isFinite(part) ? `${Math.round(part * 100)}` : "–";
}

export function clock(date) {
  return date.toLocaleTimeString([], { hour12: false });
}

export function dateAndClock(date) {
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString([], { day: "numeric", month: "short" })}, `;
  return day + date.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" });
}
