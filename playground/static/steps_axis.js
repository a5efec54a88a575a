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
