// Ties the stage to gradio: messages come in, questions and events go out, knobs are watched.
import { numbers } from "./format.js";
import { effects } from "./effects.js";
import { mount } from "./stage.js";
import { words } from "./words.js";

const NAMES = ["strategy", "temperature", "top_k", "top_p", "min_p", "typical_p",
  "repetition_penalty", "no_repeat_ngram_size"];
const PACES = [1, 3, 10, null]; // tokens a second, as on the pace control

/** Called once by the component, see playground/stage.py. */
export async function connect({ element, props, watch, trigger, server, files }) {
  const place = element.querySelector(".stage-place");
  const [dictionaries] = await Promise.all([
    fetch(`${files}words.json`).then((answer) => answer.json()),
    script(`${files}plotly.js`),
  ]);
  let language = window.playgroundChosen ?? "en";
  const ask = (name) => (query) => server[name]({ ...query, language });
  // The lines under the knobs stand outside the stage and have words of their own.
  const outside = Object.fromEntries(Object.entries(dictionaries).map(([l, d]) => [l, d.effects]));
  const told = () => ({
    t: words(outside, language),
    n: numbers(language, words(dictionaries, language)),
  });
  let settings = { strategy: "sampling", temperature: 1 };
  let shown = null; // the step on the stage: {step, settings, what_if}
  const tell = () => effects(shown?.settings ?? settings, shown?.step ?? null, told().t, told().n);
  const known = new Set(); // runs whose beginning has come

  const stage = mount(place, {
    words: dictionaries,
    language,
    transport: { look: ask("look"), redraw: ask("redraw"), steps: ask("steps") },
    on: {
      force: ({ handle, index, token_id }) => branch({ handle, at: index, token_id }),
      writeOn: ({ handle, index }) => branch({ handle, at: index }),
      backToRun: ({ settings }) => trigger("settings", settings),
      shown(view) {
        shown = view;
        tell();
      },
    },
  });

  async function receive(message) {
    if (message.run != null && !known.has(message.run)) {
      known.add(message.run);
      // A message may be lost when several come at once; what it held can be asked for.
      if (!message.started) stage.receive(await ask("steps")({ handle: message.run, from: 0 }));
    }
    stage.receive(message);
    paused = paused && !message.finished;
    mark(!message.finished && !message.error);
  }

  let running = false;
  let paused = false;
  function mark(now) {
    running = now;
    const page = document.getElementById("decode");
    page?.classList.toggle("running", running);
    page?.classList.toggle("paused", running && paused);
    page?.classList.toggle("has-text", stage.state().steps > 0 || running);
  }

  function branch(query) {
    window.playground.starting();
    trigger("branch", query);
  }

  const handle = () => stage.state().handle;
  window.playground = {
    stage,
    starting() {
      paused = false;
      mark(true);
    },
    stop() {
      if (handle()) ask("stop")({ handle: handle() });
    },
    pause() {
      if (!running || !handle()) return;
      paused = !paused;
      ask("pause")({ handle: handle(), paused });
      mark(running);
    },
    /** One token: of this text, or of a new one where there is none. */
    step: () => branch({ handle: handle(), at: null, more: 1 }),
    goOn: () => branch({ handle: handle(), at: null }),
    reset() {
      window.playground.stop();
      stage.reset();
      mark(false);
    },
    pace(place) {
      if (running && handle()) ask("pace")({ handle: handle(), tokens_per_s: PACES[place] ?? null });
    },
    knobs(values) {
      settings = Object.fromEntries(NAMES.map((name, i) => [name, values[i]]));
      stage.knobs(settings);
      if (!shown) tell();
    },
    language(next) {
      language = next;
      stage.setLanguage(next);
      tell();
    },
    theme() {
      const dark = !document.body.classList.contains("dark");
      window.playgroundThemed = true;
      document.body.classList.toggle("dark", dark);
      try { localStorage.setItem("playground-theme", dark ? "dark" : "light"); } catch { /* private */ }
      stage.setTheme(dark ? "dark" : "light");
    },
  };
  // What is folded away is drawn when it opens; its lines have to be written then.
  document.querySelector("#knobs")?.addEventListener("click", () => setTimeout(tell, 60));
  if (window.innerWidth <= 860) document.querySelector("#fold > button.open")?.click();
  stage.setTheme(document.body.classList.contains("dark") ? "dark" : "light");

  const take = () => {
    if (props.value) receive(JSON.parse(props.value));
  };
  watch("value", take);
  take();
}

function script(source) {
  if (window.Plotly) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const tag = Object.assign(document.createElement("script"), { src: source, onload: resolve, onerror: reject });
    document.head.append(tag);
  });
}
