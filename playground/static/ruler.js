// The draw: the ruler of cumulative final probability, and where the uniform number u landed.
import { labelOf, segmentsOf } from "./candidates.js";
import { h, middle, reveal, say } from "./dom.js";

const LETTER = 8.6; // px of a letter in the tokens' typeface at the ruler's size

export function ruler({ t, n, tip, redraw }) {
  const sentence = h("p.sentence");
  const pin = h("div.pin", { "aria-hidden": "true" }, h("span.flag"), h("span.needle"));
  const band = h("div.band");
  const scale = h("div.scale", { "aria-hidden": "true" });
  const track = h("div.track", { role: "img" }, pin, band, scale);
  const again = h(
    "button.quiet",
    { type: "button", click: () => redraw() },
    t("ruler.again", { times: n.count(100) }),
  );
  const result = h("span.result", { role: "status" });
  const element = h("div.ruler", {}, sentence, track, h("div.line", {}, again, result));
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    const mark = h("span", {}, n.tickUnit(tick));
    mark.style.left = `${tick * 100}%`;
    scale.append(mark);
  }
  let shown = [];

  band.addEventListener("pointermove", (event) => {
    const i = [...band.children].indexOf(event.target.closest(".segment"));
    const segment = shown[i];
    if (!segment) return tip.hide();
    const edges = `${n.unit(segment.low)} – ${n.unit(segment.high)}`;
    const lines = [
      [t("word.final"), n.probability(segment.final)],
      [t("ruler.from_to"), edges],
    ];
    const count = segment.hits;
    if (count != null) lines.push([t("word.drawn"), t("word.times", { count: n.count(count) })]);
    return tip.show(segment.label, lines, band.children[i].getBoundingClientRect());
  });
  band.addEventListener("pointerleave", tip.hide);

  function story(step, whatIf) {
    const name = (id) => labelOf(step, id);
    if (step.forced && !whatIf) {
      const values = {
        label: step.label,
        choice: name(step.choice),
        u: step.draw == null ? "" : n.unit(step.draw),
      };
      return t(step.draw == null ? "ruler.forced_greedy" : "ruler.forced", values);
    }
    if (step.draw == null) return t("ruler.greedy", { label: name(step.choice) });
    const key = whatIf ? (step.choice === step.id ? "ruler.same" : "ruler.other") : "ruler.landed";
    return t(key, { u: n.unit(step.draw), label: name(step.choice) });
  }

  function draw({ step, whatIf, tally, drawing }) {
    reveal(element, Boolean(step));
    if (!step) return;
    const text = story(step, whatIf);
    say(sentence, text);
    track.setAttribute("aria-label", text);
    const nothing = step.draw == null;
    track.classList.toggle("idle", nothing);
    again.disabled = nothing || drawing;
    shown = nothing ? [] : segmentsOf(step);
    const width = band.clientWidth;
    band.replaceChildren(
      ...shown.map((segment, i) => {
        const share = segment.high - segment.low;
        segment.hits = tally ? (tally.counts.get(segment.id) ?? 0) : null;
        const node = h("span.segment");
        node.classList.toggle("picked", segment.picked);
        node.classList.toggle("odd", i % 2 === 1);
        node.style.left = `${segment.low * 100}%`;
        node.style.width = `${share * 100}%`;
        const room = Math.floor((share * width - 10) / LETTER);
        const letters = [...segment.label].length;
        if (room >= Math.min(letters, 6)) node.append(h("bdi", {}, middle(segment.label, room)));
        if (tally && segment.hits && share * width > 34) {
          node.append(h("span.hits", {}, `×${n.count(segment.hits)}`));
        }
        return node;
      }),
    );
    reveal(pin, !nothing);
    if (!nothing) {
      pin.style.left = `${step.draw * 100}%`;
      pin.classList.toggle("right", step.draw > 0.85);
      pin.classList.toggle("left", step.draw < 0.15);
      say(pin.firstChild, t("ruler.u", { u: n.unit(step.draw) }));
    }
    say(result, tally ? t("ruler.result", { times: n.count(tally.times) }) : "");
  }

  return { element, draw };
}
