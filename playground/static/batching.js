// The part Batching: ties its pictures to gradio. Messages come in, Stop goes out.
import { lanes, span } from "./batching_lanes.js";
import { report } from "./batching_report.js";
import { texts } from "./batching_texts.js";
import { h, say } from "./dom.js";
import { numbers } from "./format.js";
import { dictionaries, language, onLanguage, section } from "./reader.js";
import { QUIET_MS, alive } from "./server.js";
import { linkStyles } from "./styles.js";
import { tip as makeTip } from "./tip.js";
import { words } from "./words.js";

const EMPTY = { handle: null, slots: 4, requests: 12, texts: [], rounds: [] };

/** A message as the pictures take it. Times in ms since a round began. */
export function unfold(message) {
  const list = message.requests.map(([prompt, tokens, arrival], i) => ({
    number: i + 1,
    prompt: message.prompts[prompt],
    tokens,
    arrival,
  }));
  return {
    handle: message.lab,
    slots: message.slots,
    seed: message.seed,
    requests: list.length,
    texts: list,
    ended: message.ended ?? null,
    rounds: message.rounds.map((round) => ({
      way: round.way,
      now: round.now,
      measures: round.measures,
      passages: round.passages.map(([slot, start, end, gaps], i) => {
        let at = 0;
        return { ...list[i], slot, start, end, steps: gaps.map((gap) => (at += gap)) };
      }),
    })),
  };
}

/** Called once by the component, see playground/batching_part.py. */
export async function connect({ element, props, watch, server, files }) {
  const place = element.querySelector(".batching-place");
  const [all] = await Promise.all([
    dictionaries(files),
    new Promise((ready) => linkStyles(ready)),
    new Promise((ready) => linkStyles(ready, "./lab.css")),
  ]);
  let view = null;
  let lab = EMPTY;
  let covered = span(0);
  let error = "";
  let running = false;
  let pending = 0; // presses whose event is still under way
  let stopping = false; // Stop was pressed before the lab's first message came
  let news = Date.now();

  const ask = (payload) => Promise.resolve(server.stop(payload)).catch((problem) => console.error(problem));

  function build() {
    const t = words(section(all, "batching"), language());
    const n = numbers(language(), words(all, language()));
    const root = h("div.stage.lab");
    const tip = makeTip(root);
    const status = h("p.lab-state", { role: "status" });
    const alert = h("p.lab-alert", { role: "alert", hidden: true });
    const pictures = props.ways.map((way, i) => lanes({ t, n, way, axis: i === props.ways.length - 1, tip }));
    const measured = report({ t, n });
    const list = texts({ t, n });
    const key = h(
      "div.lab-key",
      {},
      ...["text", "prefill", "steps", "idle", "queue"].map((name) =>
        h("span.entry", {}, h(`i.${name}`, { "aria-hidden": "true" }), t(`key.${name}`)),
      ),
    );
    root.prepend(
      h(
        "section.card.lab-rounds",
        { "aria-label": t("question") },
        h("header", {}, h("h3", {}, t("question"))),
        h("p.caption", {}, t("caption")),
        status,
        alert,
        key,
        ...pictures.map((picture) => picture.element),
      ),
      measured.element,
      list.element,
    );
    place.replaceChildren(root);
    view = { t, pictures, measured, list, status, alert };
    new ResizeObserver(draw).observe(root);
    draw();
  }

  function sentence(result) {
    if (lab.ended === "done") return result;
    if (lab.ended === "stopped") return view.t("state.stopped");
    if (running) return view.t(["state.warming", "state.static", "state.continuous"][lab.rounds.length]);
    return view.t("empty");
  }

  function draw() {
    if (!view) return;
    covered = span(Math.max(0, ...lab.rounds.map((round) => round.now)), covered);
    view.pictures.forEach((picture, i) => {
      const begun = lab.rounds[i] ?? null;
      const text = running && !begun && i > 0 ? view.t("next") : "";
      picture.draw({ lab, round: begun, covered, text });
    });
    say(view.status, sentence(view.measured.draw(lab)));
    view.list.draw(lab);
    say(view.alert, error);
    view.alert.hidden = !error;
  }

  function mark(now) {
    running = now;
    // Run and Stop change places; who has one under the fingers keeps the other.
    const focused = ["batching-run", "batching-stop"].includes(document.activeElement?.id);
    document.getElementById("batching")?.classList.toggle("running", running);
    if (focused) document.getElementById(running ? "batching-stop" : "batching-run")?.focus();
  }

  function receive(message) {
    news = Date.now();
    if (message.error) {
      error = message.error.text;
      if (!message.lab || message.lab === lab.handle) mark(false);
    } else {
      if (message.lab !== lab.handle) covered = span(0);
      lab = unfold(message);
      if (stopping && !lab.ended) ask({ lab: lab.handle });
      if (lab.ended) mark(false);
    }
    draw();
  }

  async function look() {
    if (!running || Date.now() - news < QUIET_MS) return;
    news = Date.now();
    if (await alive(files)) return;
    error = view.t("state.lost");
    mark(false);
    draw();
  }
  setInterval(look, QUIET_MS / 2);

  window.playgroundBatching = {
    starting() {
      pending += 1;
      stopping = false;
      error = "";
      news = Date.now();
      lab = { ...EMPTY, slots: lab.slots, requests: lab.requests, texts: lab.texts };
      covered = span(0);
      mark(true);
      draw();
    },
    settled() {
      pending -= 1;
      if (!pending) mark(false);
      draw();
    },
    stop() {
      stopping = true;
      if (lab.handle) ask({ lab: lab.handle });
    },
    /** For tests and for curious people. */
    state: () => ({ running, error, lab, covered }),
  };

  build();
  onLanguage(build);
  const newest = () => {
    if (props.value) receive(JSON.parse(props.value));
  };
  watch("value", newest);
  newest();
}
