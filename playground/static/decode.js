// Ties the stage to gradio: messages come in, questions and events go out, knobs are watched.
import { numbers } from "./format.js";
import { effects } from "./effects.js";
import { QUIET_MS, alive, plotly } from "./server.js";
import { mount } from "./stage.js";
import { words } from "./words.js";

/** Called once by the component, see playground/stage.py. */
export async function connect({ element, props, watch, trigger, server, files }) {
  const place = element.querySelector(".stage-place");
  const [dictionaries] = await Promise.all([
    fetch(`${files}words.json`).then((answer) => answer.json()),
    plotly(files),
  ]);
  let language = window.playgroundChosen ?? "en";
  const ask = (name) => async (query) => {
    try {
      return await server[name]({ ...query, language });
    } catch (error) {
      console.error(error);
      return { error: lost() };
    }
  };
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
      seed: ({ seed }) => trigger("seed", { seed }),
      shown(view) {
        shown = view;
        tell();
      },
    },
  });

  // What runs now: its handle, null from the press of a button until its first message is here.
  let current = null;
  let running = false;
  let paused = false;
  let stopping = false; // stop was pressed before the run's first message came
  let unwanted = false; // and the page was reset: what comes is not to be shown
  let pending = 0; // presses whose event is still under way

  // One after the other: a message whose beginning has to be asked for holds up those behind it.
  let chain = Promise.resolve();
  const receive = (message) => {
    chain = chain.then(() => take(message)).catch((error) => console.error(error));
  };

  async function take(message) {
    news = Date.now();
    if (message.run != null && !known.has(message.run)) {
      known.add(message.run);
      // A message may be lost when several come at once; what it held can be asked for.
      if (!message.started) stage.receive(await ask("steps")({ handle: message.run, from: 0 }));
      current = message.run;
      if (stopping) ask("stop")({ handle: current });
    }
    if (unwanted) return;
    stage.receive(message);
    if (message.run === current) mark(!message.finished && !message.error);
  }

  // Gradio holds its own events back while the server is away, so the page looks for itself.
  let news = Date.now();
  const lost = () => ({ text: words(dictionaries, language)("state.lost") });

  async function look() {
    if (!running || paused || Date.now() - news < QUIET_MS) return;
    news = Date.now();
    if (await alive(files)) return;
    stage.receive(current ? { run: current, steps: [], error: lost() } : { error: lost() });
    mark(false);
  }
  setInterval(look, QUIET_MS / 3);

  async function pressed() {
    await new Promise((resolve) => setTimeout(resolve, QUIET_MS / 4));
    if (!running && !(await alive(files))) stage.receive({ error: lost() });
  }
  document.getElementById("generate")?.addEventListener("click", pressed);

  const button = (name, enabled) => {
    const found = document.getElementById(name);
    if (found) found.disabled = !enabled;
  };

  function mark(now) {
    running = now;
    paused &&= now;
    const held = running && paused;
    // Generate and Stop change places; who has one under the fingers keeps the other.
    const focused = ["generate", "stop"].includes(document.activeElement?.id);
    const written = stage.state().steps > 0;
    document.getElementById("decode")?.classList.toggle("running", running);
    if (focused) document.getElementById(running ? "stop" : "generate")?.focus();
    button("pause", running && !paused);
    button("step", !running || held);
    button("go-on", (written && !running) || held);
    button("reset", written || running);
  }

  function hold(now, step = false) {
    paused = now;
    ask("pause")({ handle: current, paused, step });
    stage.receive({ run: current, steps: [], paused });
    mark(running);
  }

  function branch(query) {
    window.playground.starting();
    trigger("branch", query);
  }

  const handle = () => stage.state().handle;
  window.playground = {
    stage,
    starting() {
      news = Date.now();
      [current, paused, stopping, unwanted] = [null, false, false, false];
      pending += 1;
      mark(true);
    },
    /** An event is over, however it ended: also where its server is gone. */
    settled() {
      pending = Math.max(0, pending - 1);
      if (!pending) mark(false);
    },
    stop() {
      stopping = true;
      if (running && current) ask("stop")({ handle: current });
    },
    pause() {
      if (running && current && !paused) hold(true);
    },
    /** One token: of this text, or of a new one where there is none. */
    step() {
      if (!running) branch({ handle: handle(), at: null, more: 1 });
      else if (paused) hold(true, true);
    },
    goOn() {
      if (!running) branch({ handle: handle(), at: null });
      else if (paused) hold(false);
    },
    reset() {
      window.playground.stop();
      unwanted = true;
      stage.reset();
      mark(false);
    },
    pace(place) {
      if (running && current) {
        ask("pace")({ handle: current, tokens_per_s: props.paces[place] ?? null });
      }
    },
    knobs(values) {
      settings = Object.fromEntries(props.knobs.map((name, i) => [name, values[i]]));
      stage.knobs(settings);
      if (!shown) tell();
    },
    language(next) {
      language = next;
      document.title = dictionaries[next].page.title;
      stage.setLanguage(next);
      tell();
    },
    theme() {
      const dark = !document.body.classList.contains("dark");
      window.playgroundThemed = true;
      document.body.classList.toggle("dark", dark);
      try {
        localStorage.setItem("playground-theme", dark ? "dark" : "light");
      } catch {
        /* private mode */
      }
      stage.setTheme(dark ? "dark" : "light");
    },
  };
  mark(false);
  document.title = dictionaries[language].page.title;
  // What is folded away is drawn when it opens; its lines have to be written then.
  document.querySelector("#knobs")?.addEventListener("click", () => setTimeout(tell, 60));
  if (window.innerWidth <= 860) document.querySelector("#fold > button.open")?.click();
  stage.setTheme(document.body.classList.contains("dark") ? "dark" : "light");

  const newest = () => {
    if (props.value) receive(JSON.parse(props.value));
  };
  watch("value", newest);
  newest();
}
