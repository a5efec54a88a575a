// What the drawings over all steps share: the step under the pointer, hover card, click selects.

import { h } from "./dom.js";

export const MARGIN = { l: 46, r: 12 };

/**
 * @param {HTMLElement} plot holds the drawing
 * @param {object} options tip; select(index); span() → number of steps the axis covers;
 *     explain(index, event) → {title, lines} or null
 */
export function pointing(plot, { tip, select, span, explain }) {
  const indexAt = (event) => {
    const box = plot.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.l) / (box.width - MARGIN.l - MARGIN.r);
    return share < 0 || share > 1 ? -1 : Math.min(span() - 1, Math.floor(share * span()));
  };
  plot.addEventListener("click", (event) => {
    const index = indexAt(event);
    if (index >= 0) select(index);
  });
  plot.addEventListener("pointermove", (event) => {
    const found = explain(indexAt(event), event);
    const at = {
      left: event.clientX,
      right: event.clientX,
      top: event.clientY - 6,
      bottom: event.clientY + 14,
    };
    if (found) tip.show(found.title, found.lines, at);
    else tip.hide();
  });
  plot.addEventListener("pointerleave", tip.hide);
}

/** Steps are counted from 1 for people; the axis covers the whole limit while the run is going. */
export function stepsAxis(span, colours, n) {
  const rough = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((one) => span / one <= 10) ?? 2000;
  const ticks = [1];
  for (let tick = rough; tick <= span; tick += rough) if (tick > 1) ticks.push(tick);
  return {
    range: [0.5, span + 0.5],
    fixedrange: true,
    showgrid: false,
    zeroline: false,
    tickangle: 0,
    ticks: "",
    tickvals: ticks,
    ticktext: ticks.map(n.count),
    color: colours.soft,
  };
}

/** The axis of one row of drawings, which lie above each other. @param {number[]} domain its part */
export const rowAxis = (domain, colours, rest) => ({
  domain,
  fixedrange: true,
  zeroline: false,
  gridcolor: colours.line,
  color: colours.soft,
  ...rest,
});

/** Probability, from 0 to 1. */
export const shareAxis = (domain, colours, n) =>
  rowAxis(domain, colours, {
    range: [-0.02, 1.02],
    tickvals: [0, 0.5, 1],
    ticktext: [0, 0.5, 1].map(n.share),
  });

/** How many equally likely tokens it is like, by powers of ten up to `most`. */
export function amongAxis(domain, colours, n, most) {
  const top = Math.max(1, Math.ceil(Math.log10(Math.max(1, most))));
  const powers = Array.from({ length: top + 1 }, (_, i) => 10 ** i);
  return rowAxis(domain, colours, {
    type: "log",
    range: [-0.05, top],
    tickvals: powers,
    ticktext: powers.map(n.count),
  });
}

/** The selected step: a band over the drawing, so that selecting redraws nothing. */
export function selection() {
  const element = h("div.selection", { "aria-hidden": "true", hidden: true });
  element.style.insetInline = `${MARGIN.l}px ${MARGIN.r}px`;
  const band = h("div");
  element.append(band);
  return {
    element,
    place(selected, span) {
      element.hidden = selected == null;
      if (selected == null) return;
      band.style.left = `${(selected / span) * 100}%`;
      band.style.width = `max(3px, ${100 / span}%)`;
    },
  };
}
