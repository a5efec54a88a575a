// One column's settings: a line that says them, and the form behind it.
import { h, say } from "./dom.js";

const IN_VIEW = ["temperature", "top_k", "top_p"];
const FOR_ALL = ["repetition_penalty", "no_repeat_ngram_size"]; // strategies that draw nothing too

/** A typed number, with either decimal separator; anything else stays as it was typed. */
const typed = (text) => {
  const value = Number(text.trim().replace(",", "."));
  return text.trim() === "" || Number.isNaN(value) ? text.trim() : value;
};

/**
 * @param {object} options t, n, page(key): words; strategies, knobs: what there is to set;
 *     change(settings)
 */
export function settingsForm({ t, n, page, strategies, knobs, change }) {
  let settings = {};
  const line = h("span.facts-line");
  const strategy = h(
    "select",
    { change: () => put("strategy", strategy.value), "aria-label": page("fields.strategy") },
    ...strategies.map((name) => h("option", { value: name }, page(`controls.${name}`))),
  );
  const seed = h("input", {
    type: "text",
    inputmode: "numeric",
    maxlength: 40,
    placeholder: page("controls.seed_hint"),
    "aria-label": page("fields.seed"),
    input: () => put("seed", seed.value.trim()),
  });
  const rows = new Map(knobs.map((knob) => [knob.name, row(knob)]));
  const seedRow = h(
    "label.knob",
    { title: page("controls.seed_info") },
    h("span", {}, page("fields.seed")),
    seed,
  );
  const rest = knobs.map((knob) => knob.name).filter((name) => !IN_VIEW.includes(name));
  const more = h(
    "details.more",
    {},
    h("summary", {}, page("controls.more")),
    ...rest.map((name) => rows.get(name).element),
  );
  const element = h(
    "details.settings",
    {},
    h("summary", { title: t("compare.edit") }, line, h("span.pen", { "aria-hidden": "true" }, "✎")),
    h(
      "div.form",
      {},
      h("label.knob", {}, h("span", {}, page("fields.strategy")), strategy),
      ...IN_VIEW.map((name) => rows.get(name).element),
      seedRow,
      more,
    ),
  );

  // It lies over the column: a press elsewhere or Escape puts it away.
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !element.open) return;
    event.stopPropagation(); // it closes this and nothing else
    element.open = false;
    element.firstChild.focus();
  });
  const away = (event) => {
    if (!element.contains(event.target)) element.open = false;
  };
  element.addEventListener("toggle", () => {
    if (element.open) document.addEventListener("pointerdown", away);
    else document.removeEventListener("pointerdown", away);
  });

  function put(name, value) {
    settings = { ...settings, [name]: value };
    change(settings);
  }

  function row({ name, low, high, step }) {
    const label = page(`fields.${name}`);
    const number = h("input.number", {
      type: "text",
      inputmode: "decimal",
      maxlength: 20,
      "aria-label": label,
      input: () => put(name, typed(number.value)),
    });
    const range = h("input", {
      type: "range",
      min: low,
      max: high,
      step,
      "aria-label": label,
      input: () => put(name, Number(range.value)),
    });
    const node = h(
      "div.knob",
      { title: page(`controls.${name}_info`) },
      h("span", { "aria-hidden": "true" }, label),
      number,
      range,
    );
    return { element: node, number, range };
  }

  const written = (value) => (typeof value === "number" ? n.tickUnit(value) : String(value));

  /** The settings that have an effect, in a few words. */
  function facts() {
    const greedy = settings.strategy === "greedy";
    const named = (name) => `${page(`fields.${name}`)} ${written(settings[name])}`;
    const list = knobs
      .filter(({ name }) => !greedy || FOR_ALL.includes(name))
      .filter(({ name, value }) => settings[name] !== value || (name === "temperature" && !greedy))
      .map(({ name }) => named(name));
    if (greedy) return [t("compare.no_draw"), ...list].join(" · ");
    const own = settings.seed === "" ? t("compare.new_seed") : named("seed");
    return [...list, own].join(" · ");
  }

  function draw(now) {
    if (now === settings && line.textContent) return;
    settings = now;
    say(line, facts());
    strategy.value = settings.strategy;
    const greedy = settings.strategy === "greedy";
    for (const [name, { element: node, number, range }] of rows) {
      node.hidden = greedy && !FOR_ALL.includes(name);
      // What is being typed is left alone: "0." on the way to "0.5" is no mistake.
      if (document.activeElement !== number) number.value = written(settings[name]);
      range.value = settings[name];
    }
    seedRow.hidden = greedy;
    if (document.activeElement !== seed) seed.value = settings.seed;
  }

  return { element, draw };
}
