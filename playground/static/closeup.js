// One step of a column seen closely: its distribution and, where the text so far is the same, that
// of the reference beside it.
import { distribution, key } from "./distribution.js";
import { h, say } from "./dom.js";
import { kept } from "./facts.js";
import { looker } from "./looker.js";
import { effect } from "./run.js";

const COUNTS = [10, 20, 50];

/**
 * @param {object} tools t, n, tip
 * @param {object} on close(), changed(); look(query): asks for more bars of a step
 */
export function closeup(tools, on) {
  const { t, n } = tools;
  const title = h("h3");
  const sentence = h("p.caption");
  const shut = h("button.quiet", { type: "button", click: on.close }, t("compare.close"));
  const more = h(
    "select",
    { change: () => ((count = Number(more.value)), on.changed()) },
    ...COUNTS.map((number) => h("option", { value: number }, n.count(number))),
  );
  const pictures = [picture(), picture()];
  const element = h(
    "section.card.closeup",
    { "aria-label": t("compare.closeup"), hidden: true },
    h("header", {}, title, h("label.choice", {}, t("bars.more"), more), shut),
    sentence,
    key(tools),
    h("div.pictures", {}, ...pictures.map((one) => one.element)),
  );
  let count = COUNTS[0];

  function picture() {
    const name = h("h4");
    const draw = h("p.drawn");
    const bars = distribution(tools);
    const left = kept(tools);
    return {
      eye: looker((query) => on.look(query), () => on.changed()),
      name,
      draw,
      bars,
      left,
      element: h("div.picture", {}, name, draw, bars.element, left.element),
    };
  }

  /** The step with as many candidates as are to be seen; its own until they are here. */
  function full(eye, run, own) {
    if (own.candidates.length >= count) return own;
    const query = {
      handle: run.handle,
      index: own.index,
      settings: run.settings,
      candidates: count,
    };
    const name = JSON.stringify([run.handle, own.index, effect(run.settings), count]);
    const answer = eye.get(name, query);
    if (!answer?.step) return own;
    const { index, id, label, text, special, forced, ms } = own;
    answer.merged ??= { ...answer.step, index, id, label, text, special, forced, ms };
    return answer.merged;
  }

  function story(step) {
    if (step.draw == null) return t("ruler.greedy", { label: step.label });
    return t("ruler.landed", { u: n.unit(step.draw), label: step.label });
  }

  function show(one, column, index, colours) {
    const step = full(one.eye, column.run, column.run.step(index));
    const vocabulary = column.run.started?.vocab_size ?? step.candidates.length;
    say(one.name, column.title);
    say(one.draw, story(step));
    one.bars.draw({ step, count, vocabulary, log: false, colours, tally: null });
    one.left.draw({ step, vocabulary });
  }

  /** @param {object|null} view column, index, beside (the reference's column or null), colours */
  function draw(view) {
    element.hidden = !view;
    if (!view) return;
    const { column, index, beside, colours } = view;
    say(title, t("compare.step_of", { name: column.title, index: n.count(index + 1) }));
    const greedy = column.run.step(index).draw == null;
    say(sentence, t(beside ? "compare.beside" : greedy ? "hero.greedy" : "hero.caption"));
    more.value = count;
    pictures[1].element.hidden = !beside;
    element.classList.toggle("two", Boolean(beside));
    pictures[0].name.hidden = !beside;
    show(pictures[0], column, index, colours);
    if (beside) show(pictures[1], beside, index, colours);
  }

  return {
    element,
    draw,
    purge: () => pictures.forEach((one) => one.bars.drawing.purge()),
  };
}
