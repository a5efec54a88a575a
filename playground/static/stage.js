// The stage of the tab "Decode": everything right of the controls. Holds what has arrived and what
// the reader chose, and draws it at most once a frame.
import { numbers } from "./format.js";
import { layout } from "./layout.js";
import { looker } from "./looker.js";
import { palette } from "./picture.js";
import { Run, effect } from "./run.js";
import { words } from "./words.js";

/**
 * @param {HTMLElement} element is emptied and filled
 * @param {object} options words ({en, tr}), language, transport and on: see the methods below
 * @returns {object} receive, knobs, setLanguage, setTheme, reset, state, destroy
 */
export function mount(element, { words: dictionaries, language = "en", transport = {}, on = {} }) {
  linkStyles();
  const root = document.createElement("div");
  root.className = "stage";
  element.replaceChildren(root);

  const chosen = { language, theme: null, count: 10, log: false, colourBy: "probability" };
  let family = new Map(); // handle → Run: this text and those it was branched from
  let retired = new Set(); // handles of earlier texts, whose late messages are ignored
  let run = null;
  let knobs = null;
  let selected = null;
  let following = true;
  let shown = null; // what the pictures of a step show: {handle, step, whatIf}
  let tally = null; // draws of the shown step: {key, times, counts}
  let drawing = false;
  let trouble = "";
  let filling = null;
  let colours = null;
  let parts = null;
  let frame = 0;

  const eye = looker((query) => transport.look(query), changed);

  const actions = {
    changed,
    select(index) {
      choose(index, false);
      on.select?.({ index });
    },
    follow() {
      choose(run ? run.length - 1 : null, true);
      on.select?.({ index: selected });
    },
    force: (index, token) => run && on.force?.({ handle: run.handle, index, token_id: token }),
    writeOn: () => run && shown && on.writeOn?.({ handle: run.handle, index: shown.step.index }),
    back: () => run && on.backToRun?.({ settings: run.settings }),
    restore(earlier) {
      show(earlier);
      on.restore?.({ handle: earlier.handle });
    },
    more: (count) => set("count", count),
    log: (log) => set("log", log),
    colourBy: (measure) => set("colourBy", measure),
    redraw,
  };

  function set(name, value) {
    chosen[name] = value;
    changed();
  }

  function choose(index, follow) {
    [selected, following] = [index, follow];
    trouble = "";
    eye.forgive();
    changed();
  }

  /** Makes a run the one on the stage. */
  function show(next) {
    run = next;
    tally = null;
    choose(next.length ? next.length - 1 : null, true);
  }

  function receive(message) {
    if (retired.has(message.run)) return;
    let target = family.get(message.run);
    if (!target) {
      target = new Run(message.run);
      const parent = message.branch && family.get(message.branch.parent);
      if (!message.branch) {
        for (const handle of family.keys()) retired.add(handle);
        family = new Map();
        eye.clear();
      }
      family.set(message.run, target);
      target.merge(message);
      if (parent) target.inherit(parent, message.branch.at);
      target.settings ??= parent?.settings ?? knobs;
      show(target);
    } else target.merge(message);
    fill(target);
    changed();
  }

  /** Asks once for steps that are missing between those that came. */
  async function fill(target) {
    const from = target.gap();
    if (from == null || filling || !transport.steps) return;
    filling = target;
    try {
      const answer = await transport.steps({ handle: target.handle, from });
      if (answer?.error) trouble = answer.error.text;
      target.add(answer?.steps ?? []);
    } catch (error) {
      console.error(error);
    }
    filling = null;
    const still = target.gap();
    if (still != null && still > from) fill(target);
    changed();
  }

  const differs = () => Boolean(run && knobs && run.settings && effect(knobs) !== effect(run.settings));

  /** What the pictures should show: the run's own step, or the same step under other settings. */
  function look() {
    const own = run && selected != null ? run.step(selected) : undefined;
    if (!own) return null;
    const plain = { handle: run.handle, step: own, whatIf: false };
    const whatIf = differs();
    const vocabulary = run.started?.vocab_size ?? own.candidates.length;
    const enough = own.candidates.length >= Math.min(chosen.count, vocabulary);
    if ((!whatIf && enough) || !transport.look) return plain;
    const settings = whatIf ? knobs : run.settings;
    const key = JSON.stringify([run.handle, selected, own.id, effect(settings), chosen.count]);
    const query = { handle: run.handle, index: selected, settings, candidates: Math.max(20, chosen.count) };
    const answer = eye.get(key, query);
    if (answer?.step) {
      const { index, id, label, text, special, forced, ms } = own;
      answer.merged ??= { ...answer.step, index, id, label, text, special, forced, ms };
      return { handle: run.handle, step: answer.merged, whatIf };
    }
    if (answer?.error) {
      trouble = answer.error.text ?? parts.t("state.look");
      return plain;
    }
    // Until the answer is here the last picture stays, with its own title: never numbers of one
    // step under the name of another.
    const last = shown?.handle === run.handle && shown.whatIf === whatIf && whatIf;
    return last ? shown : plain;
  }

  const tallyKey = () =>
    shown && JSON.stringify([shown.handle, shown.step.index, shown.step.id, effect(shown.whatIf ? knobs : run.settings)]);

  async function redraw() {
    const key = tallyKey();
    if (!key || drawing || !transport.redraw) return;
    drawing = true;
    changed();
    const settings = shown.whatIf ? knobs : run.settings;
    try {
      const answer = await transport.redraw({ handle: run.handle, index: shown.step.index, settings, times: 100 });
      if (answer?.error) trouble = answer.error.text;
      else if (tallyKey() === key) add(key, answer.counts);
    } catch (error) {
      console.error(error);
      trouble = parts.t("state.look");
    }
    drawing = false;
    changed();
  }

  function add(key, pairs) {
    const counts = new Map(tally?.key === key ? tally.counts : []);
    let times = tally?.key === key ? tally.times : 0;
    for (const [id, count] of pairs) {
      counts.set(id, (counts.get(id) ?? 0) + count);
      times += count;
    }
    tally = { key, times, counts };
  }

  function changed() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }

  function draw() {
    if (following && run) selected = run.length ? run.length - 1 : null;
    if (run && selected != null && selected >= run.length) selected = run.length ? run.length - 1 : null;
    shown = look();
    if (tally && tally.key !== tallyKey()) tally = null;
    colours ??= palette(root);
    parts.draw({
      run, shown, selected, following, tally, drawing, trouble, colours,
      whatIf: Boolean(shown?.whatIf),
      count: chosen.count, log: chosen.log, colourBy: chosen.colourBy, theme: theme(),
      vocabulary: run?.started?.vocab_size ?? shown?.step.candidates.length ?? 0,
      earlier: [...family.values()].filter((one) => one !== run).reverse(),
    });
  }

  const theme = () => chosen.theme ?? (document.body.classList.contains("dark") ? "dark" : "light");

  function setTheme(name) {
    chosen.theme = name;
    root.classList.toggle("dark", theme() === "dark");
    root.classList.toggle("light", theme() === "light");
    colours = null;
    changed();
  }

  function setLanguage(name) {
    chosen.language = name;
    root.lang = name;
    parts?.destroy();
    const t = words(dictionaries, name);
    parts = { ...layout(root, { t, n: numbers(name, t), actions }), t };
    changed();
  }

  function reset() {
    for (const handle of family.keys()) retired.add(handle);
    family = new Map();
    [run, selected, following, shown, tally, trouble] = [null, null, true, null, null, ""];
    eye.clear();
    changed();
  }

  const resized = new ResizeObserver(changed);
  resized.observe(root);
  setTheme(null);
  setLanguage(language);

  return {
    receive,
    knobs(settings) {
      knobs = { ...settings };
      trouble = "";
      eye.forgive();
      changed();
    },
    setLanguage,
    setTheme,
    reset,
    /** For tests and links: what is on the stage, as plain data. */
    state: () => ({
      ...chosen, theme: theme(), handle: run?.handle ?? null, selected, following,
      steps: run?.length ?? 0, text: run?.text ?? "", running: Boolean(run?.running),
      what_if: Boolean(shown?.whatIf), shown: shown?.step.index ?? null, drawn: tally?.times ?? 0,
      earlier: [...family.keys()].filter((handle) => handle !== run?.handle),
    }),
    destroy() {
      cancelAnimationFrame(frame);
      resized.disconnect();
      parts.destroy();
      root.remove();
    },
  };
}

/** The style sheet lies beside this module; a page that has linked it already is left alone. */
function linkStyles() {
  const href = new URL("./stage.css", import.meta.url).href;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return;
  if (document.querySelector("link[data-stage]")) return;
  const link = document.createElement("link");
  Object.assign(link, { rel: "stylesheet", href });
  link.dataset.stage = "";
  document.head.append(link);
}
