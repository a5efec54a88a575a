// The stage's parts in their order, in one language. Built afresh when the language changes.
import { chips, legend } from "./chips.js";
import { MEASURES } from "./colour.js";
import { course } from "./course.js";
import { distribution, key } from "./distribution.js";
import { h, middle, remembered, reveal, say } from "./dom.js";
import { facts, kept, stateLine } from "./facts.js";
import { heatmap } from "./heatmap.js";
import { ruler } from "./ruler.js";
import { scrubber } from "./scrubber.js";
import { table } from "./table.js";
import { tip as hoverCard } from "./tip.js";

export const COUNTS = [10, 20, 50, 100];
const DEEPER_MS = 250; // the drawings over all steps follow a running text at this pace,
const DEEPER_SHARE = 5; // or slower, so that they take at most a fifth of the browser's time

export function layout(root, { t, n, actions }) {
  const tip = hoverCard(root);
  const tools = { t, n, tip, select: actions.select };
  const text = chips(tools);
  const colours = legend(tools);
  const moves = scrubber({ ...tools, follow: actions.follow });
  const state = stateLine(tools);
  const bars = distribution({ ...tools, force: actions.force });
  bars.element.append(h("p.promise", {}, t("hero.promise")));
  const left = kept(tools);
  const list = table({ ...tools, force: actions.force });
  const draw = ruler({ ...tools, redraw: actions.redraw });
  const path = course(tools);
  const heat = heatmap(tools);
  const quiet = facts({ ...tools, reuse: actions.reuse });

  const badge = () => h("span.badge", {}, t("what_if.badge"));
  const badges = [badge(), badge()];
  const title = h("h3");
  const versions = earlier();
  const caption = h("p.caption");
  const hint = h("p.hint");
  const rule = h("p.caption", {}, t("ruler.caption"));
  const change = h(
    "div.actions",
    {},
    h("button.primary", { type: "button", click: actions.writeOn }, t("what_if.write_on")),
    h("button.quiet", { type: "button", click: actions.back }, t("what_if.back")),
  );
  const more = h(
    "select",
    { change: () => actions.more(Number(more.value)) },
    ...COUNTS.map((count) => h("option", { value: count }, n.count(count))),
  );
  const log = h("input", { type: "checkbox", change: () => actions.log(log.checked) });
  const colourBy = h(
    "select",
    { change: () => actions.colourBy(colourBy.value) },
    ...Object.keys(MEASURES).map((key) => h("option", { value: key }, t(`colour.${key}`))),
  );
  const over = (key, part) =>
    h(
      "figure",
      {},
      h("h4", {}, t(`${key}.title`)),
      h("p.caption", {}, t(`${key}.caption`)),
      part.element,
    );
  const deeper = h(
    "details.card.deeper",
    {},
    h("summary", {}, t("deeper.title")),
    h("label.choice", {}, t("colour.label"), colourBy),
    over("course", path),
    over("heatmap", heat),
  );
  remembered(deeper, "stage.deeper");
  deeper.addEventListener("toggle", () => actions.changed());

  root.append(
    h(
      "section.card.text",
      { "aria-label": t("text.title") },
      h("header", {}, h("h3", {}, t("text.title")), versions.element, colours.element),
      text.element,
      moves.element,
      state.element,
    ),
    h(
      "section.card.hero",
      { "aria-label": t("hero.name") },
      h("header", {}, title, badges[0]),
      h("div.swap", {}, caption, change),
      key(tools),
      h(
        "div.halves",
        {},
        h("div.main", {}, bars.element, hint),
        h(
          "div.side",
          {},
          left.element,
          h("label.choice", {}, t("bars.more"), more),
          h("label.choice.check", {}, log, t("bars.log")),
        ),
      ),
      list.element,
    ),
    h(
      "section.card.draw",
      { "aria-label": t("ruler.title") },
      h("header", {}, h("h3", {}, t("ruler.title")), badges[1]),
      rule,
      draw.element,
    ),
    deeper,
    quiet.element,
  );

  /** The texts that branches were cut from: a click brings one back. */
  function earlier() {
    const name = h("summary");
    const menu = h("div.menu");
    const element = h("details.earlier", {}, name, menu);
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") element.open = false;
    });
    element.addEventListener("focusout", (event) => {
      if (!element.contains(event.relatedTarget)) element.open = false;
    });
    return {
      element,
      draw(runs) {
        reveal(element, runs.length > 0);
        say(name, t("earlier.open", { count: n.count(runs.length) }));
        menu.replaceChildren(
          ...runs.map((run) =>
            h(
              "button",
              {
                type: "button",
                click: () => {
                  element.open = false;
                  actions.restore(run);
                },
              },
              h("bdi", {}, middle(run.text.trim().replace(/\s+/g, " ") || "…", 70)),
            ),
          ),
        );
      },
    };
  }

  let drawnAt = 0;
  let later = 0;
  let listed = "";

  const pace = () => Math.max(DEEPER_MS, DEEPER_SHARE * (path.drawing.cost + heat.drawing.cost));

  function drawDeeper(view) {
    clearTimeout(later);
    if (!deeper.open) return;
    const wait = view.run?.running ? drawnAt + pace() - performance.now() : 0;
    if (wait > 0) {
      later = setTimeout(actions.changed, wait);
      return;
    }
    drawnAt = performance.now();
    const limit = view.run?.started?.max_new_tokens ?? 1;
    const span = Math.max(1, view.run?.running ? limit : 0, view.run?.length ?? 0);
    path.draw({ ...view, span });
    heat.draw({ ...view, span });
  }

  function drawAll(view) {
    const { run, shown, whatIf } = view;
    const step = shown?.step ?? null;
    root.classList.toggle("what-if", whatIf);
    root.classList.toggle("empty", !run);
    text.draw(view);
    colours.draw({ ...view, shown: Boolean(run?.length) });
    moves.draw({ ...view, count: run?.length ?? 0, running: Boolean(run?.running) });
    state.draw(view);
    say(title, step ? t("hero.title", { index: n.count(step.index + 1) }) : t("hero.name"));
    badges.forEach((one) => reveal(one, whatIf));
    const greedy = Boolean(step) && step.draw == null;
    say(caption, t(greedy ? "hero.greedy" : "hero.caption"));
    reveal(caption, !whatIf);
    reveal(rule, !greedy);
    say(hint, t(whatIf ? "bars.hint_what_if" : "bars.hint"));
    reveal(change, whatIf);
    more.value = view.count;
    log.checked = view.log;
    colourBy.value = view.colourBy;
    const picture = { ...view, step };
    bars.draw(picture);
    left.draw(picture);
    list.draw(picture);
    draw.draw(picture);
    const names = view.earlier.map((one) => one.handle).join();
    if (names !== listed || !names) versions.draw(view.earlier);
    listed = names;
    quiet.draw(view);
    drawDeeper(view);
  }

  function destroy() {
    clearTimeout(later);
    [bars, path, heat].forEach((part) => part.drawing.purge());
    root.replaceChildren();
  }

  return { draw: drawAll, destroy };
}
