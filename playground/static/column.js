// One column: what it is called, its settings, its text, what became of it, its measures.
import { chips } from "./chips.js";
import { h, say } from "./dom.js";
import { measures } from "./measures.js";
import { settingsForm } from "./settings_form.js";
import { swatch } from "./swatch.js";

const NEAR = 24; // px from the end of a text at which a reader follows it

/**
 * @param {object} tools t, n, page, tip and what columns are made of: strategies, knobs
 * @param {object} on change(settings), remove(), select(index)
 */
export function columnCard(tools, on) {
  const { t } = tools;
  const badge = h("span.letter");
  const name = h("h3");
  const sign = h("span.sign-of");
  const remove = h("button.icon.remove", { type: "button", click: on.remove }, "×");
  const form = settingsForm({ ...tools, change: on.change });
  const text = chips({
    ...tools,
    select: on.select,
    empty: "compare.empty",
    prompted: false,
  });
  const jump = h("button.link", { type: "button", click: () => on.select(parted) });
  const plain = h("span");
  const parting = h("p.parting", {}, plain, jump);
  const status = h("p.status", { role: "status" });
  const alert = h("p.alert", { role: "alert" });
  const numbers = measures(tools);
  const element = h(
    "article.column",
    {},
    h("header", {}, badge, name, sign, remove),
    form.element,
    parting,
    text.element,
    h("div.state", {}, status, alert),
    numbers.element,
  );
  let parted = null;
  let place = null;

  function state({ run, stale, pending }) {
    if (pending) return t("state.reading");
    if (!run || run.error) return "";
    if (run.finished) {
      const { reason } = run.finished;
      if (stale) return t("compare.stale");
      return reason === "error" ? "" : t(`state.${reason}`);
    }
    if (run.waiting != null) return t("state.waiting", { place: tools.n.count(run.waiting) });
    return t(run.length ? "state.writing" : "state.reading");
  }

  function trouble({ run, refused }) {
    if (refused) return refused;
    if (run?.error) return run.error.text || t("compare.failed");
    return run?.finished?.reason === "error" ? t("compare.failed") : "";
  }

  function drawParting({ run, parting: where }) {
    parted = where?.at ?? null;
    say(plain, where && parted == null && run?.length ? where.text : "");
    say(jump, parted == null ? "" : where.text);
    jump.hidden = parted == null;
  }

  /**
   * @param {object} view column {settings, run, refused, measures}, place, title, letter, parting
   *     {text, at}, marks, selected, pending, stale, theme, removable
   */
  function draw(view) {
    const { run, refused } = view.column;
    if (place !== view.place) {
      place = view.place;
      sign.replaceChildren(swatch(place));
      element.style.setProperty("--own", `var(--column-${place})`);
    }
    say(badge, view.letter);
    say(name, view.kind);
    element.setAttribute("aria-label", view.title);
    remove.setAttribute("aria-label", t("compare.remove", { name: view.title }));
    remove.disabled = !view.removable;
    form.draw(view.column.settings);
    const flow = text.element;
    const near = flow.scrollHeight - flow.scrollTop - flow.clientHeight < NEAR;
    text.draw({
      run: view.pending ? null : run,
      selected: view.selected,
      following: Boolean(run?.running) && near && view.selected == null,
      colourBy: "probability",
      theme: view.theme,
      marks: view.marks,
    });
    drawParting({ run, parting: view.parting });
    say(status, state({ ...view, run }));
    const wrong = trouble({ run, refused });
    say(alert, wrong);
    alert.hidden = !wrong;
    status.hidden = Boolean(wrong);
    numbers.draw(run?.length ? view.column.measures : null);
  }

  return {
    element,
    draw,
    /** The element of a token. */
    chip: (index) => text.element.querySelector(`[data-index="${index}"]`),
  };
}
