// The stage of the tab "Decode": everything right of the controls. Holds what has arrived and what
// the reader chose, and draws it at most once a frame.
import { numbers } from "./format.js";
import { layout } from "./layout.js";
import { looker } from "./looker.js";
import { Run, effect } from "./run.js";
import { linkStyles, palette } from "./styles.js";
import { tallies } from "./tally.js";
import { words } from "./words.js";

/**
 * @param {HTMLElement} element is emptied and filled
 * @param {object} options words ({en, tr}) and language; transport {look, redraw, steps}: asks,
 * @param {object} options words ({en, tr}), language; transport {look, redraw, steps}: questions
 *     restore, select, shown}: what the reader did, and what the pictures show now
 * @returns {object} receive, knobs, setLanguage, setTheme, reset, state, destroy
 */
export function mount(element, { words: dictionaries, language = "en", transport = {}, on = {} }) {
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
  let trouble = "";
  let filling = null;
  let colours = null;
  let parts = null;
  let frame = 0;
  let styled = false; // colours can be read once the style sheet is there
  let told = null; // what on.shown was last told: {step, settings}
  const eye = looker((query) => transport.look(query), changed);
  const counted = tallies((query) => transport.redraw(query), changed);

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
    reuse: (seed) => on.seed?.({ seed }),
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
    choose(next.length ? next.length - 1 : null, true);
  }

  function receive(message) {
    if (message.run == null) {
      // Nothing was started: only a reason can be told.
      if (message.error) trouble = message.error.text ?? parts.t("state.error");
      changed();
      return;
    }
    // A second `started` is a deliberate replay; anything else of an earlier text comes too late.
    if (retired.has(message.run) && !message.started) return;
    retired.delete(message.run);
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
      if (answer?.error) trouble = answer.error.text ?? parts.t("state.look");
      else target.merge(answer ?? {});
    } catch (error) {
      console.error(error);
    }
    filling = null;
    const still = target.gap();
    if (still != null && still > from) fill(target);
    changed();
  }

  const differs = () =>
    Boolean(run && knobs && run.settings && effect(knobs) !== effect(run.settings));

  /** The texts that can be brought back, newest first: not those that another one goes on from. */
  function earlier() {
    const all = [...family.values()];
    const whole = all.filter((one) => !all.some((other) => other.continues(one)));
    return whole.filter((one) => one !== run).reverse();
  }

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
    const query = {
      handle: run.handle,
      index: selected,
      settings,
      candidates: Math.max(20, chosen.count),
    };
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

  // Knobs that mean the same as the run's settings are still the ones that the reader sees.
  const settingsOf = (picture) =>
    picture.whatIf || (knobs && effect(knobs) === effect(run.settings)) ? knobs : run.settings;

  const pictureKey = () =>
    shown && run
      ? JSON.stringify([shown.handle, shown.step.index, shown.step.id, effect(settingsOf(shown))])
      : null;

  async function redraw() {
    if (!shown || !transport.redraw) return;
    const query = { handle: run.handle, index: shown.step.index, settings: settingsOf(shown) };
    const error = await counted.draw(pictureKey(), { ...query, times: 100 }, pictureKey);
    if (error) trouble = error.text ?? parts.t("state.look");
  }

  function changed() {
    if (!styled) return;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }

  function draw() {
    if (following && run) selected = run.length ? run.length - 1 : null;
    if (run && selected != null && selected >= run.length)
      selected = run.length ? run.length - 1 : null;
    shown = look();
    colours ??= palette(root);
    parts.draw({
      run,
      shown,
      selected,
      following,
      tally: counted.of(pictureKey()),
      drawing: counted.busy,
      trouble,
      colours,
      whatIf: Boolean(shown?.whatIf),
      count: chosen.count,
      log: chosen.log,
      colourBy: chosen.colourBy,
      theme: theme(),
      vocabulary: run?.started?.vocab_size ?? shown?.step.candidates.length ?? 0,
      earlier: earlier(),
    });
    tell();
  }

  /** Tells the page what the pictures show, when that has changed. */
  function tell() {
    const settings = shown ? settingsOf(shown) : null;
    const step = shown?.step ?? null;
    if (told && told.step === step && told.settings === settings) return;
    told = { step, settings };
    on.shown?.(shown && { step, settings, what_if: shown.whatIf });
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
    told = null;
    parts = { ...layout(root, { t, n: numbers(name, t), actions }), t };
    changed();
  }

  function reset() {
    for (const handle of family.keys()) retired.add(handle);
    family = new Map();
    [run, selected, following, shown, trouble] = [null, null, true, null, ""];
    eye.clear();
    changed();
  }

  const resized = new ResizeObserver(changed);
  resized.observe(root);
  setTheme(null);
  setLanguage(language);
  linkStyles(() => {
    styled = true;
    setTheme(chosen.theme);
  });

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
      ...chosen,
      theme: theme(),
      handle: run?.handle ?? null,
      selected,
      following,
      steps: run?.length ?? 0,
      text: run?.text ?? "",
      running: Boolean(run?.running),
      what_if: Boolean(shown?.whatIf),
      shown: shown?.step.index ?? null,
      drawn: counted.of(pictureKey())?.times ?? 0,
      earlier: earlier().map((one) => one.handle),
    }),
    destroy() {
      cancelAnimationFrame(frame);
      resized.disconnect();
      parts.destroy();
      root.remove();
    },
  };
}
