// The likeliest candidates of every step: x the step, y the rank, colour the raw probability.
import { colorscale } from "./colour.js";
import { h } from "./dom.js";
import { baseLayout, picture } from "./picture.js";
import { MARGIN, pointing, selectionLine, stepsAxis } from "./steps_axis.js";

const RANKS = 10;
const CELL = 20;
const TOP = 6;
const HEIGHT = (RANKS + 1) * CELL + TOP + 26;

/** Row of the written token: 0…9 for ranks 1…10, 10 for every lower rank. */
const rowOf = (step) => Math.min(step.rank, RANKS + 1) - 1;

/** Candidates are likeliest first; those beyond the tenth are there for other reasons. */
const candidateAt = (step, row) => {
  if (rowOf(step) === row) return [step.id, step.label, null, step.raw, step.final];
  return row < RANKS ? step.candidates[row] : undefined;
};

export function heatmap({ t, n, tip, select }) {
  const plot = h("div.plot", { role: "img" });
  const element = h("div.over-steps", {}, plot);
  element.style.height = `${HEIGHT}px`;
  const drawing = picture(plot);
  let steps = [];
  let covered = 1;

  pointing(plot, {
    tip,
    span: () => covered,
    select: (index) => steps[index] && select(index),
    explain: (index, event) => {
      const row = Math.floor((event.clientY - plot.getBoundingClientRect().top - TOP) / CELL);
      const found = steps[index] && candidateAt(steps[index], row);
      return found && {
        title: found[1],
        lines: [
          [t("word.step"), n.count(index + 1)],
          [t("word.rank"), n.count(row < RANKS ? row + 1 : steps[index].rank)],
          [t("word.raw"), n.probability(found[3])],
          [t("word.final"), n.probability(found[4])],
        ],
      };
    },
  });

  function summary() {
    const first = steps.filter((step) => step.rank === 1).length;
    const beyond = steps.filter((step) => step.rank > RANKS).length;
    return t("heatmap.summary", { first: n.count(first), count: n.count(steps.length), beyond: n.count(beyond) });
  }

  function draw({ run, selected, span, colours, theme }) {
    steps = run?.steps ?? [];
    covered = span;
    plot.setAttribute("aria-label", summary());
    drawing.draw(() => figure(selected, colours, theme));
  }

  function figure(selected, colours, theme) {
    const x = steps.map((step) => step.index + 1);
    const y = Array.from({ length: RANKS + 1 }, (_, row) => row);
    const z = y.map((row) => steps.map((step) => candidateAt(step, row)?.[3] ?? null));
    // One path around every written token's cell: null lifts the pen.
    const path = { x: [], y: [] };
    for (const step of steps) {
      const [left, top] = [step.index + 0.5, rowOf(step) - 0.5];
      path.x.push(left, left + 1, left + 1, left, left, null);
      path.y.push(top, top, top + 1, top + 1, top, null);
    }
    const data = [
      { type: "heatmap", uid: "heat", x, y, z, zmin: 0, zmax: 1, colorscale: colorscale(theme), showscale: false, xgap: steps.length > 150 ? 0 : 1, ygap: 1 },
      { type: "scatter", mode: "lines", uid: "written", ...path, line: { color: colours.final, width: steps.length > 150 ? 1.25 : 2.25 } },
    ];
    const layout = baseLayout(colours, plot.clientWidth, HEIGHT, { ...MARGIN, t: TOP, b: 26 });
    layout.xaxis = stepsAxis(covered, colours, n);
    layout.yaxis = {
      range: [RANKS + 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false, color: colours.soft,
      tickvals: [0, 4, 9, 10], ticktext: [n.count(1), n.count(5), n.count(10), t("heatmap.beyond", { count: n.count(RANKS) })],
    };
    layout.shapes = selectionLine(selected, colours);
    return { data, layout };
  }

  return { element, draw, purge: drawing.purge };
}
