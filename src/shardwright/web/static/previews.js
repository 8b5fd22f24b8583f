// The newest frame of each running acquisition, which opens it in the viewer, and what is known of it. One request at a time for each; the daemon copies a frame only for a request.

import { count, duration, measure } from "./format.js";
import { make, setText } from "./table.js";

const EVERY_MS = 1000;
const MOST = 8;
const STALE_S = 5;

class Preview {
  #busy = false;
  #asked_ms = -Infinity;

  constructor(name, path) {
    this.name = name;
    this.image = make("img", { alt: "", width: "320", height: "320" });
    const store = encodeURIComponent(path.split(/[\\/]/).pop());
    const view = { href: `view/${store}`, target: "_blank", rel: "noopener", "aria-label": `Open ${name} in neuroglancer, new tab` };
    this.link = make("a", view, this.image);
    this.words = make("span", { class: "quiet" }, "waiting for a frame");
    this.channel = make("span", { class: "channel", hidden: "" });
    this.range = make("span", { class: "range quiet" });
    this.saturated = make("span", { class: "saturated" });
    const lines = [
      make("div", {}, make("b", {}, name), " ", this.channel, " ", this.words),
      make("div", {}, this.range, " ", this.saturated),
    ];
    this.element = make("figure", { "data-name": name }, this.link, make("figcaption", {}, ...lines));
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

  // Picture, number and words change in one step: the new picture is decoded before it takes the old one's place.
  async #show(blob, headers) {
    const facts = JSON.parse(headers.get("X-Facts"));
    const alt = `Newest frame of ${this.name}, number ${facts.frame}`;
    const url = URL.createObjectURL(blob);
    const image = make("img", { alt, width: "320", height: "320", src: url });
    await image.decode().finally(() => URL.revokeObjectURL(url));
    this.image.replaceWith(image);
    this.image = image;
    this.element.dataset.frame = facts.frame;
    this.#describe(facts);
  }

  #describe({ frame, time_s, image, index, channel, range, saturated }) {
    const place = Object.entries(index).map(([axis, i]) => `${axis} ${count(i)}`);
    const age = time_s >= STALE_S ? [`${duration(time_s)} ago`] : [];
    setText(this.words, [`frame ${count(frame)}`, ...(image ? [image] : []), ...place, ...age].join(", "));
    this.channel.hidden = channel === null;
    setText(this.channel, channel?.name ?? "");
    this.channel.style.setProperty("--channel", channel?.color ? `#${channel.color}` : "");
    setText(this.range, range ? `values ${range.map(measure).join(" to ")}` : "no finite value");
    setText(this.saturated, saturated > 0 ? `${percentOf(saturated)} saturated` : "");
  }

  close() {
    this.element.remove();
  }
}

// A single pixel of many is not nothing.
function percentOf(part) {
  return part < 0.001 ? "under 0.1 %" : `${measure(part * 100)} %`;
}

export class Previews {
  #shown = new Map();

  constructor(section, list) {
    Object.assign(this, { section, list });
  }

  show(acquisitions) {
    const shown = acquisitions.filter((each) => each.frames_received > 0).slice(0, MOST);
    const names = shown.map((each) => each.name);
    for (const [name, preview] of this.#shown) {
      if (names.includes(name)) continue;
      preview.close();
      this.#shown.delete(name);
    }
    for (const { name, path } of shown) {
      if (!this.#shown.has(name)) {
        this.#shown.set(name, new Preview(name, path));
        this.list.append(this.#shown.get(name).element);
      }
      this.#shown.get(name).renew();
    }
    this.section.hidden = names.length === 0;
  }
}
