// What the page knows of the last minutes: sums over all streams of each snapshot, and the rates between them, by the daemon's own clock.

export const SPAN_S = 180;
const RATE_SPAN_S = 3; // a rate is that of the last seconds: steady enough to read
const LATENCY_SPAN_S = 10;

const SUMMED = [
  "frames_received", "bytes_received", "frames_stored", "frames_durable", "bytes_raw", "bytes_stored",
  "frames_skipped", "frames_duplicate", "frames_late", "frames_dropped", "frames_lost", "ring_frames", "ring_used",
];

// One snapshot in sums. `store`: the histogram of the time from a frame's arrival until it is stored.
export function summed(snapshot) {
  const streams = Object.values(snapshot.streams ?? {});
  const sums = Object.fromEntries(SUMMED.map((name) => [name, streams.reduce((sum, stream) => sum + (stream[name] ?? 0), 0)]));
  const histograms = streams.map((stream) => stream.histograms?.store_seconds).filter(Boolean);
  sums.store = histograms.length
    ? { le: histograms[0].le, counts: histograms[0].counts.map((_, i) => histograms.reduce((sum, each) => sum + each.counts[i], 0)) }
    : null;
  sums.degrade_level = Math.max(0, ...streams.map((stream) => stream.degrade_level ?? 0));
  return sums;
}

// The duration within which `part` of what was counted between two histograms took place; null where nothing was.
export function quantile(older, newer, part) {
  const counts = newer.counts.map((n, i) => n - (older?.counts[i] ?? 0));
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total <= 0) return null;
  let left = part * total;
  for (let i = 0; i < counts.length; i += 1) {
    if (counts[i] >= left && counts[i] > 0) {
      const low = i ? newer.le[i - 1] : 0;
      const high = newer.le[Math.min(i, newer.le.length - 1)];
      return low + (high - low) * (left / counts[i]);
    }
    left -= counts[i];
  }
  return newer.le.at(-1);
}

export class History {
  #samples = []; // {time_s, sums, point}, oldest first
  #pid = null;

  // Takes a snapshot; gives the sums and the rates of now.
  add(snapshot) {
    const time_s = snapshot.uptime_s;
    const last = this.#samples.at(-1);
    if (snapshot.pid !== this.#pid || (last && time_s < last.time_s)) this.#samples = []; // another daemon
    this.#pid = snapshot.pid;
    const sums = summed(snapshot);
    const before = this.#before(time_s - RATE_SPAN_S);
    const per = (name) => (before && time_s > before.time_s ? Math.max(0, sums[name] - before.sums[name]) / (time_s - before.time_s) : NaN);
    const earlier = this.#before(time_s - LATENCY_SPAN_S);
    const within = (part) => (earlier && sums.store ? quantile(earlier.sums.store, sums.store, part) : null);
    const point = {
      time_s,
      frameRate: per("frames_received"),
      byteRate: per("bytes_received"),
      storedRate: per("bytes_stored"),
      ring: sums.ring_frames ? sums.ring_used / sums.ring_frames : 0,
      median_s: within(0.5),
      most_s: within(0.99),
    };
    this.#samples.push({ time_s, sums, point });
    while (this.#samples[0].time_s < time_s - SPAN_S - RATE_SPAN_S) this.#samples.shift();
    return { sums, point };
  }

  // The newest sample that is at least as old as `time_s`, else the oldest one.
  #before(time_s) {
    return this.#samples.findLast((sample) => sample.time_s <= time_s) ?? this.#samples[0];
  }

  points() {
    return this.#samples.map((sample) => sample.point);
  }
}
