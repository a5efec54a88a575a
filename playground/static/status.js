// The live status in the heading: what the engine does for everyone, in one quiet line.
import { h, say } from "./dom.js";
import { numbers } from "./format.js";
import { dictionaries, language, onLanguage, section } from "./reader.js";
import { words } from "./words.js";

const BUSY_MS = 2000; // from one question to the next while somebody decodes,
const IDLE_MS = 10_000; // and while nobody does
const SOON_MS = 700; // after a press on this page, which may have started something

/** Called once by the component, see playground/page.py. */
export async function connect({ element, files }) {
  const place = element.querySelector(".status-place");
  const all = await dictionaries(files);
  const parts = Object.fromEntries(["running", "waiting", "cache", "speed"].map((name) => [name, h(`span.${name}`)]));
  const note = h("span.note", { role: "status" });
  const line = h("p.live-status", {}, ...Object.values(parts), note);
  place.replaceChildren(line);
  let answer = null;
  let timer = null;
  let asking = false;

  function draw() {
    const t = words(section(all, "status"), language());
    const n = numbers(language(), words(all, language()));
    line.title = t("means");
    const { running = 0, waiting = 0, cache_bytes = 0, cache_budget = 0, tokens_per_s = 0, restarted } = answer ?? {};
    const busy = running + waiting > 0;
    const texts = {
      running: t("running", { count: n.count(running) }),
      waiting: t("waiting", { count: n.count(waiting) }),
      cache: t("cache", { used: n.mib(cache_bytes), budget: n.mib(cache_budget) }),
      speed: t("speed", { count: n.speed(tokens_per_s) }),
    };
    const shown = answer && busy && !restarted;
    for (const [name, part] of Object.entries(parts)) {
      part.hidden = !shown || (name === "waiting" && !waiting);
      if (shown) say(part, texts[name]);
    }
    say(note, !answer ? "" : restarted ? t("restarted") : busy ? "" : t("idle"));
    line.classList.toggle("alarm", Boolean(restarted));
  }

  function later(ms) {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(ask, ms);
  }

  async function ask() {
    if (asking || document.hidden) return;
    asking = true;
    try {
      const told = await fetch(`${files}status.json`, { cache: "no-store" });
      if (told.ok) answer = await told.json();
    } catch {
      answer = null; // nobody there: rather nothing than something old
    }
    asking = false;
    draw();
    later(answer && answer.running + answer.waiting > 0 ? BUSY_MS : IDLE_MS);
  }

  document.addEventListener("visibilitychange", () => later(0));
  document.addEventListener("click", () => later(SOON_MS), { capture: true });
  onLanguage(draw);
  ask();
}
