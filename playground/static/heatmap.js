// The likeliest candidates of every step: x the step, y the rank, colour the raw probability.
import { colorscale } from "./colour.js";
import { h } from "./dom.js";
import { baseLayout, changes, picture } from "./picture.js";
import { MARGIN, pointing, selection, stepsAxis } from "./steps_axis.js";

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
  const band = selection();
  const changed = changes();
  element.append(band.element);
  let steps = [];
  let covered = 1;

  pointing(plot, {
    tip,
    span: () => covered,
    select: (index) => steps[index] && select(index),
    explain: (index, event) => {
      const row = Math.floor((event.clientY - plot.getBoundingClientRect().top - TOP) / CELL);
      const found = steps[index] && candidateAt(steps[index], row);
      return (
        found && {
          title: found[1],
          lines: [
            [t("word.step"), n.count(index + 1)],
            [t("word.rank"), n.count(row < RANKS ? row + 1 : steps[index].rank)],
            [t("word.raw"), n.probability(found[3])],
            [t("word.final"), n.probability(found[4])],
          ],
        }
      );
    },
  });

  function summary() {
    const first = steps.filter((step) => step.rank === 1).length;
    const beyond = steps.filter((step) => step.rank > RANKS).length;
    return t("heatmap.summary", {
      first: n.count(first),
      count: n.count(steps.length),
      beyond: n.count(beyond),
    });
  }

  function draw({ run, selected, span, colours, theme }) {
    band.place(run?.length ? selected : null, span);
    if (!changed(run, run?.version, run?.length, span, colours, plot.clientWidth)) return;
    steps = run?.steps ?? [];
    covered = span;
    plot.setAttribute("aria-label", summary());
    drawing.draw(() => figure(colours, theme));
  }

  function figure(colours, theme) {
    const x = steps.map((step) => step.index + 1);
    const y = Array.from({ length: RANKS + 1 }, (_, row) => row);
    const z = y.map((row) => steps.map((step) => candidateAt(step, row)?.[3] ?? null));
    const many = plot.clientWidth / covered < 9;
    // One path around every written token's cell, or a bar through it where cells are narrow:
    // null lifts the pen.
    const path = { x: [], y: [] };
    for (const step of steps) {
      const [left, row] = [step.index + 0.5, rowOf(step)];
      const [top, bottom] = [row - 0.5, row + 0.5];
      if (many) {
        path.x.push(left, left + 1, null);
        path.y.push(row, row, null);
      } else {
        path.x.push(left, left + 1, left + 1, left, left, null);
        path.y.push(top, top, bottom, bottom, top, null);
      }
    }
    const outline = (uid, color, width) => ({
      type: "scatter",
      mode: "lines",
      uid,
      ...path,
      line: { color, width },
      cliponaxis: false,
    });
    const data = [
      {
        type: "heatmap",
        uid: "heat",
        x,
        y,
        z,
        zmin: 0,
        zmax: 1,
        colorscale: colorscale(theme),
        showscale: false,
        xgap: many ? 0 : 1,
        ygap: 1,
      },
      // Two tones: seen on the palest and on the deepest cell.
      outline("written", many ? colours.paper : colours.ink, many ? 6 : 4),
      outline("written-inside", many ? colours.ink : colours.paper, many ? 3 : 1.5),
    ];
    const layout = baseLayout(colours, plot.clientWidth, HEIGHT, { ...MARGIN, t: TOP, b: 26 });
    layout.xaxis = stepsAxis(covered, colours, n);
    layout.yaxis = {
      range: [RANKS + 0.6, -0.5],
      fixedrange: true,
      showgrid: false,
      zeroline: false,
      color: colours.soft,
      ticks: "",
      tickvals: [0, 4, 9, 10],
      ticktext: [
        n.count(1),
        n.count(5),
        n.count(10),
        t("heatmap.beyond", { count: n.count(RANKS) }),
      ],
    };
    return { data, layout };
  }

  return { element, draw, drawing };
}
