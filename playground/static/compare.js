// Ties the tab "Compare" to gradio: one event starts all columns, its messages bring their news.
import { mount } from "./comparison.js";
import { QUIET_MS, alive, plotly } from "./server.js";
import { linkStyles } from "./styles.js";
import { words } from "./words.js";

/** Called once by the component, see playground/compare_tab.py. */
export async function connect({ element, props, watch, trigger, server, files }) {
  const [dictionaries] = await Promise.all([
    fetch(`${files}words.json`).then((answer) => answer.json()),
    plotly(files),
    new Promise((ready) => linkStyles(ready)),
    new Promise((ready) => linkStyles(ready, "./compare.css")),
  ]);
  const language = () => window.playgroundChosen ?? "en";
  const lost = () => words(dictionaries, language())("state.lost");
  const ask = (name) => async (query) => {
    try {
      return await server[name]({ ...query, language: language() });
    } catch (error) {
      console.error(error);
      return { error: { text: lost() } };
    }
  };
  let news = Date.now();
  let underWay = 0; // presses whose event is not over

  const root = document.createElement("div");
  root.className = "stage compare";
  element.querySelector(".compare-place").replaceChildren(root);
  const comparison = mount(root, {
    words: dictionaries,
    language: language(),
    strategies: props.strategies,
    knobs: props.knobs,
    length: props.length,
    columns: props.columns,
    prompts: props.prompts,
    notes: props.notes,
    transport: { look: ask("look"), steps: ask("steps"), stop: ask("stop") },
    run(query) {
      news = Date.now();
      underWay += 1;
      trigger("compare", { ...query, language: language() });
      // Gradio holds its own events back while the server is away, so the page looks for itself.
      setTimeout(look, QUIET_MS / 4, true);
    },
  });

  async function look(now = false) {
    if (!comparison.running() || (now !== true && Date.now() - news < QUIET_MS)) return;
    if (!now) news = Date.now();
    if (!(await alive(files))) comparison.lost(lost());
  }
  setInterval(look, QUIET_MS / 3);

  window.playgroundCompare = {
    comparison,
    /** An event is over, however it ended: also where its server is gone. */
    settled() {
      underWay = Math.max(0, underWay - 1);
      if (!underWay) comparison.settled();
    },
  };

  // The language and the theme are chosen elsewhere on the page.
  const seen = new MutationObserver(() => comparison.setLanguage(language()));
  seen.observe(document.documentElement, { attributes: true, attributeFilter: ["lang"] });
  new MutationObserver(() => comparison.repaint()).observe(document.body, {
    attributes: true,
    attributeFilter: ["class"],
  });

  const newest = () => {
    if (!props.value) return;
    news = Date.now();
    comparison.receive(JSON.parse(props.value));
  };
  watch("value", newest);
}
