// The parts of the tab "Compare" in their order, in one language. Built afresh when that changes.
import { legend } from "./chips.js";
import { closeup } from "./closeup.js";
import { columnCard } from "./column.js";
import { courses } from "./courses.js";
import { h, say } from "./dom.js";
import { meanings } from "./measures.js";
import { KINDS, SETS } from "./presets.js";
import { tip as hoverCard } from "./tip.js";

const PLOTS_MS = 250; // the plots follow running texts at this pace,
const PLOTS_SHARE = 5; // or slower, so that they take at most a fifth of the browser's time
const LETTERS_A_TOKEN = 5; // about, in running text
const LETTER = 0.55; // em, its width
const CLEAR = 48; // px between a token and the sheet that shows its distribution
const LINES = [6, 16]; // of a text in view

export function board(root, options) {
  const { t, n, page, actions, length } = options;
  const tip = hoverCard(root);
  const tools = { ...options, tip };
  const cards = new Map();

  const prompt = h("textarea", {
    rows: 2,
    maxlength: 200_000,
    dir: "auto",
    placeholder: page("controls.prompt_hint"),
    "aria-label": page("fields.prompt"),
    input: () => actions.prompt(prompt.value),
  });
  const note = h("p.caption.note");
  const examples = h("select.examples", {
    "aria-label": page("controls.examples"),
    change: () => {
      prompt.value = examples.value;
      actions.prompt(prompt.value);
      examples.selectedIndex = 0;
    },
  });
  const limit = h("input.number", {
    type: "text",
    inputmode: "numeric",
    maxlength: 20,
    "aria-label": page("fields.max_new_tokens"),
    input: () => actions.length(whole(limit.value)),
  });
  const slider = h("input", {
    type: "range",
    min: length[0],
    max: Math.min(length[1], 200),
    "aria-label": page("fields.max_new_tokens"),
    input: () => actions.length(Number(slider.value)),
  });
  const go = h("button.go", { type: "button", click: actions.go });
  const sets = Object.keys(SETS).map((name) =>
    h(
      "button.quiet",
      { type: "button", "data-set": name, click: () => actions.choose(name) },
      t(`compare.set_${name}`),
    ),
  );
  const add = h(
    "select.add",
    {
      "aria-label": t("compare.add"),
      change: () => {
        actions.add(add.value);
        add.selectedIndex = 0;
      },
    },
    h("option", { value: "", disabled: true, selected: true }, `+ ${t("compare.add")}`),
    ...[...Object.keys(KINDS), "seed"].map((kind) =>
      h("option", { value: kind }, t(kind === "seed" ? "compare.another_seed" : `compare.kind_${kind}`)),
    ),
  );
  const sentence = h("p.verdict", { role: "status" });
  const trouble = h("p.alert", { role: "alert", hidden: true });
  const colours = legend(tools);
  const columns = h("div.columns");
  const near = closeup(tools, {
    close,
    changed: actions.changed,
    look: actions.look,
  });
  const plots = courses(tools, {
    select: (index, place) => actions.select(shown.columns[place].id, index),
    changed: actions.changed,
  });
  root.addEventListener("keydown", escape);
  let shown = null;
  let drawnAt = 0;
  let later = 0;

  root.append(
    h(
      "section.card.ask",
      {},
      h(
        "div.prompt-line",
        {},
        h("label.over", {}, h("span", {}, page("fields.prompt")), examples),
        prompt,
        note,
      ),
      h(
        "div.run-line",
        {},
        h(
          "div.knob.limit",
          { title: page("controls.max_new_tokens_info") },
          h("span", { "aria-hidden": "true" }, page("fields.max_new_tokens")),
          limit,
          slider,
        ),
        go,
      ),
      h("div.sets", { role: "group", "aria-label": t("compare.sets") },
        h("span", { "aria-hidden": "true" }, t("compare.sets")), ...sets, add),
    ),
    h("div.say", {}, sentence, trouble),
    columns,
    h("div.under", {}, meanings(tools), colours.element),
    near.element,
    plots.element,
  );

  /** The close view goes, and the keyboard's place goes back to where it came from. */
  function close() {
    const { column, index } = shown.closeup;
    actions.close();
    cards.get(column.id)?.chip(index)?.focus();
  }

  let uncovered = "";

  /** The token that is looked at stays in sight above the sheet that shows it. */
  function uncover(closeup) {
    const key = closeup ? `${closeup.column.id} ${closeup.index}` : "";
    if (key === uncovered) return;
    uncovered = key;
    const chip = closeup && cards.get(closeup.column.id)?.chip(closeup.index);
    if (!chip) return;
    const covered = chip.getBoundingClientRect().bottom + CLEAR;
    const by = covered - near.element.getBoundingClientRect().top;
    if (by > 0) window.scrollBy({ top: by });
  }

  function escape(event) {
    if (event.key === "Escape" && shown?.closeup) close();
  }

  function whole(text) {
    const value = Number(text.trim());
    return text.trim() === "" || Number.isNaN(value) ? text.trim() : value;
  }

  function card(id) {
    const made = columnCard(tools, {
      change: (settings) => actions.change(id, settings),
      remove: () => actions.remove(id),
      select: (index) => actions.select(id, index),
    });
    cards.set(id, made);
    return made;
  }

  function drawColumns(list) {
    const ids = new Set(list.map(({ id }) => id));
    for (const id of cards.keys()) if (!ids.has(id)) cards.delete(id);
    const wanted = list.map(({ id }) => (cards.get(id) ?? card(id)).element);
    if (wanted.some((node, i) => columns.children[i] !== node) || columns.children.length !== wanted.length) {
      columns.replaceChildren(...wanted);
    }
    columns.dataset.count = list.length;
    for (const one of list) cards.get(one.id).draw(one);
  }

  /** As many lines as the texts will about fill: nothing moves while they grow. */
  function reserve({ length: tokens, running }) {
    const flow = columns.querySelector(".flow");
    if (!flow?.clientWidth || (running && columns.style.getPropertyValue("--lines"))) return;
    const letters = flow.clientWidth / (parseFloat(getComputedStyle(flow).fontSize) * LETTER);
    const lines = Math.ceil(((Number(tokens) || LINES[1]) * LETTERS_A_TOKEN) / letters) + 2;
    const bounded = Math.max(LINES[0], Math.min(LINES[1], lines));
    columns.style.setProperty("--lines", bounded);
  }

  function drawPlots(view) {
    clearTimeout(later);
    const pace = Math.max(PLOTS_MS, PLOTS_SHARE * plots.drawing.cost);
    const wait = view.running ? drawnAt + pace - performance.now() : 0;
    if (wait > 0) {
      later = setTimeout(actions.changed, wait);
      return;
    }
    drawnAt = performance.now();
    plots.draw(view.courses);
  }

  let offered = "";

  function drawAsk(view) {
    if (document.activeElement !== prompt) prompt.value = view.prompt;
    if (document.activeElement !== limit) limit.value = view.length;
    slider.value = view.length;
    say(note, view.note);
    note.hidden = !view.note;
    const list = view.prompts.join("\n");
    if (list !== offered) {
      offered = list;
      examples.replaceChildren(
        h("option", { value: "", disabled: true, selected: true }, t("compare.examples")),
        ...view.prompts.map((text) => h("option", { value: text }, text)),
      );
    }
    say(go, t(view.running ? "compare.stop" : "compare.start"));
    go.classList.toggle("stop", view.running);
    for (const one of sets) one.setAttribute("aria-pressed", String(one.dataset.set === view.set));
    add.disabled = view.full;
  }

  function draw(view) {
    shown = view;
    root.classList.toggle("empty", !view.started);
    drawAsk(view);
    say(sentence, view.started ? view.verdict : t("compare.invitation"));
    say(trouble, view.trouble);
    trouble.hidden = !view.trouble;
    drawColumns(view.columns);
    reserve(view);
    const theme = view.columns[0].theme;
    colours.draw({ colourBy: "probability", theme, shown: true });
    near.draw(view.closeup);
    uncover(view.closeup);
    drawPlots(view);
  }

  function destroy() {
    clearTimeout(later);
    root.removeEventListener("keydown", escape);
    near.purge();
    plots.drawing.purge();
    root.replaceChildren();
  }

  return { draw, destroy };
}
