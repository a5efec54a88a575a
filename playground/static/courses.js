// The courses of all columns on common axes: probability of the written token, and uncertainty.
import { h, say } from "./dom.js";
import { baseLayout, changes, picture } from "./picture.js";
import { MARGIN, amongAxis, pointing, selection, shareAxis, stepsAxis } from "./steps_axis.js";
import { DASHES, MARKS, swatch } from "./swatch.js";

const HEIGHT = 460;
const TOP = 18;
const FOOT = 26;
const ROWS = [
  [0.55, 1],
  [0.02, 0.46],
]; // of the height between, from the top
const WINDOW = 5; // steps whose mean a line shows
const PALE = 0.16; // opacity of the columns that are not looked at

/** Means over the step and its neighbours, as many on either side as there are at the ends. */
export function smooth(values, width = WINDOW) {
  const half = (width - 1) / 2;
  return values.map((_, i) => {
    const reach = Math.min(half, i, values.length - 1 - i);
    const near = values.slice(i - reach, i + reach + 1);
    return near.reduce((sum, value) => sum + value, 0) / near.length;
  });
}

/** @param {object} tools t, n, tip @param {object} on select(index, place), changed() */
export function courses({ t, n, tip }, on) {
  const plot = h("div.plot", { role: "img" });
  const names = ["probability", "uncertainty"].map((key, i) => {
    const name = h("div.small-title", { "aria-hidden": "true" }, t(`course.${key}`));
    name.style.top = `${(1 - ROWS[i][1]) * (HEIGHT - TOP - FOOT) - 1}px`;
    return name;
  });
  const over = h("div.over-steps", {}, ...names, plot);
  over.style.height = `${HEIGHT}px`;
  const legend = h("div.columns-legend", { role: "group", "aria-label": t("compare.legend") });
  const element = h(
    "section.card.courses",
    {},
    h("header", {}, h("h3", {}, t("compare.courses"))),
    h("p.caption", {}, t("compare.courses_caption", { count: n.count(WINDOW) })),
    legend,
    over,
  );
  const drawing = picture(plot);
  const band = selection();
  over.append(band.element);
  const changed = changes();
  let columns = [];
  let covered = 1;
  let focus = null; // place of the column that is looked at

  pointing(plot, {
    tip,
    span: () => covered,
    select(index) {
      const place = focus ?? columns.findIndex(({ run }) => run?.step(index));
      if (columns[place]?.run?.step(index)) on.select(index, place);
    },
    explain(index) {
      const lines = columns
        .map(({ run, letter }) => [letter, run?.step(index)])
        .filter(([, step]) => step)
        .map(([letter, step]) => [`${letter} ${step.label}`, n.probability(step.raw)]);
      return lines.length && { title: `${t("word.step")} ${n.count(index + 1)}`, lines };
    },
  });

  let entries = "";

  function drawLegend() {
    const text = JSON.stringify(columns.map((column) => column.title));
    if (text !== entries) {
      entries = text;
      legend.replaceChildren(
        ...columns.map((column, place) => {
          const button = h(
            "button.entry",
            { type: "button", title: t("compare.look_at"), "aria-pressed": "false" },
            swatch(place),
            h("bdi", {}, column.title),
          );
          button.style.setProperty("--own", `var(--column-${place})`);
          button.addEventListener("click", () => {
            focus = focus === place ? null : place;
            on.changed();
          });
          return button;
        }),
      );
      if (focus >= columns.length) focus = null;
    }
    [...legend.children].forEach((button, place) =>
      button.setAttribute("aria-pressed", String(focus === place)),
    );
  }

  function summary() {
    const lines = columns
      .filter(({ run }) => run?.length)
      .map(({ run, title }) => {
        const steps = run.steps;
        const mean = steps.reduce((sum, step) => sum + step.raw, 0) / steps.length;
        return t("compare.course_summary", {
          name: title,
          count: n.count(steps.length),
          probability: n.probability(mean),
        });
      });
    return lines.join(" ") || t("course.none");
  }

  /** @param {object} view columns {run, title, letter}, span, agreed, selected, colours, hues */
  function draw(view) {
    columns = view.columns;
    drawLegend();
    band.place(view.selected, view.span);
    const state = columns.map(({ run }) => `${run?.handle} ${run?.version} ${run?.length}`);
    const { span, agreed, colours, hues } = view;
    if (!changed(state.join(), span, agreed, focus, colours, hues, plot.clientWidth)) return;
    covered = span;
    plot.setAttribute("aria-label", summary());
    const shown = columns.map(({ run }) => run?.steps ?? []);
    drawing.draw(() => figure(shown, { agreed, colours, hues }));
  }

  function figure(shown, { agreed, colours, hues }) {
    const wide = plot.clientWidth / covered;
    // Means are taken of what was measured, of the entropy in nats, and drawn on the axis's scale.
    const trace = (steps, place, kind, measured, yaxis, onAxis) => {
      const values = steps.map(measured);
      const own = {
        type: "scatter",
        x: steps.map((step) => step.index + 1),
        yaxis,
        opacity: focus == null || focus === place ? 1 : PALE,
      };
      const dots = {
        ...own,
        uid: `${kind}-dots-${place}`,
        mode: "markers",
        y: values.map(onAxis),
        marker: { symbol: MARKS[place], size: 5, color: hues[place] },
        opacity: own.opacity * (focus === place ? 0.7 : 0.35),
      };
      const line = {
        ...own,
        uid: `${kind}-${place}`,
        mode: "lines",
        y: smooth(values).map(onAxis),
        line: {
          color: hues[place],
          width: focus === place ? 3.5 : 2.25,
          dash: DASHES[place],
          shape: "spline",
          smoothing: 0.6,
        },
      };
      return wide < 9 ? [line] : [dots, line];
    };
    const same = (value) => value;
    const data = shown.flatMap((steps, place) => [
      ...trace(steps, place, "raw", (step) => step.raw, "y", same),
      ...trace(steps, place, "among", (step) => step.entropy, "y2", Math.exp),
    ]);
    const layout = baseLayout(colours, plot.clientWidth, HEIGHT, { ...MARGIN, t: TOP, b: FOOT });
    layout.xaxis = { ...stepsAxis(covered, colours, n), anchor: "y2" };
    layout.yaxis = shareAxis(ROWS[0], colours, n);
    const most = Math.max(10, ...shown.flat().map((step) => Math.exp(step.entropy)));
    layout.yaxis2 = amongAxis(ROWS[1], colours, n, most);
    // Where all texts are still the same there is one line under all the others.
    if (agreed > 0) {
      layout.shapes = ROWS.map(([y0, y1]) => ({
        type: "rect",
        xref: "x",
        yref: "paper",
        x0: 0.5,
        x1: agreed + 0.5,
        y0,
        y1,
        line: { width: 0 },
        fillcolor: colours.select,
        layer: "below",
      }));
    }
    return { data, layout };
  }

  return { element, draw, drawing };
}
