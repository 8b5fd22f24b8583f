// The newest frame of each running acquisition. One request at a time for each; the daemon copies a frame only for a request.

import { count, duration } from "./format.js";
import { make, setText } from "./table.js";

const EVERY_MS = 1000;
const MOST = 8;
const STALE_S = 5;

class Preview {
  #busy = false;
  #asked_ms = -Infinity;

  constructor(name) {
    this.name = name;
    this.image = make("img", { alt: "", width: "320", height: "320" });
    this.words = make("span", { class: "quiet" }, "waiting for a frame");
    this.element = make("figure", { "data-name": name }, this.image, make("figcaption", {}, make("b", {}, name), " ", this.words));
  }

  async renew() {
    const now_ms = performance.now();
    if (this.#busy || now_ms - this.#asked_ms < EVERY_MS * 0.9) return;
    this.#busy = true;
    this.#asked_ms = now_ms;
    try {
      const answer = await fetch(`api/preview/${encodeURIComponent(this.name)}.png`, { signal: AbortSignal.timeout(5000) });
      if (answer.status === 200) await this.#show(await answer.blob(), answer.headers);
    } catch {
      setText(this.words, "no answer");
    } finally {
      this.#busy = false;
    }
  }

  async #show(blob, headers) {
    const url = URL.createObjectURL(blob);
    const old = this.image.src;
    this.image.src = url;
    await this.image.decode();
    if (old) URL.revokeObjectURL(old);
    const frame = Number(headers.get("X-Frame"));
    this.element.dataset.frame = frame;
    this.image.alt = `Newest frame of ${this.name}, number ${frame}`;
    const age_s = Number(headers.get("X-Frame-Age-Seconds"));
    setText(this.words, `frame ${count(frame)}${age_s >= STALE_S ? `, ${duration(age_s)} ago` : ""}`);
  }

  close() {
    this.element.remove();
    if (this.image.src) URL.revokeObjectURL(this.image.src);
  }
}

export class Previews {
  #shown = new Map();

  constructor(section, list) {
    Object.assign(this, { section, list });
  }

  show(acquisitions) {
    const names = acquisitions.filter((each) => each.frames_received > 0).map((each) => each.name).slice(0, MOST);
    for (const [name, preview] of this.#shown) {
      if (names.includes(name)) continue;
      preview.close();
      this.#shown.delete(name);
    }
    for (const name of names) {
      if (!this.#shown.has(name)) {
        this.#shown.set(name, new Preview(name));
        this.list.append(this.#shown.get(name).element);
      }
      this.#shown.get(name).renew();
    }
    this.section.hidden = names.length === 0;
  }
}
