// The course over all steps: probability of the written token, uncertainty, time; one x axis.
import { h } from "./dom.js";
import { baseLayout, changes, picture } from "./picture.js";
import { MARGIN, amongAxis, pointing, rowAxis, selection, shareAxis, stepsAxis } from "./steps_axis.js";

const HEIGHT = 380;
const ROWS = [
  [0.66, 1],
  [0.34, 0.58],
  [0.02, 0.26],
]; // of the height, from the top

export function course({ t, n, tip, select }) {
  const plot = h("div.plot", { role: "img" });
  const names = ["probability", "uncertainty", "time"].map((key, i) => {
    const name = h("div.small-title", { "aria-hidden": "true" }, t(`course.${key}`));
    name.style.top = `${(1 - ROWS[i][1]) * (HEIGHT - 44) + 18 - 19}px`;
    return name;
  });
  const element = h("div.over-steps", {}, ...names, plot);
  element.style.height = `${HEIGHT}px`;
  const drawing = picture(plot);
  const band = selection();
  const changed = changes();
  element.append(band.element);
  let steps = [];
  let covered = 1;
  let first = 0; // the first step that this run took itself

  pointing(plot, {
    tip,
    span: () => covered,
    select: (index) => steps[index] && select(index),
    explain: (index) => {
      const step = steps[index];
      return (
        step && {
          title: step.label,
          lines: [
            [t("word.step"), n.count(index + 1)],
            [t("word.raw"), n.probability(step.raw)],
            [t("word.final"), n.probability(step.final)],
            [t("word.unsure"), t("word.tokens", { count: n.equalTokens(step.entropy) })],
            [t("word.time"), n.ms(step.ms)],
          ],
        }
      );
    },
  });

  function summary() {
    if (!steps.length) return t("course.none");
    const least = steps.reduce((a, b) => (b.raw < a.raw ? b : a));
    const most = steps.reduce((a, b) => (b.entropy > a.entropy ? b : a));
    return t("course.summary", {
      count: n.count(steps.length),
      least: n.probability(least.raw),
      at: n.count(least.index + 1),
      unsure: n.equalTokens(most.entropy),
      where: n.count(most.index + 1),
    });
  }

  function draw({ run, selected, span, colours }) {
    band.place(run?.length ? selected : null, span);
    if (!changed(run, run?.version, run?.length, span, colours, plot.clientWidth)) return;
    steps = run?.steps ?? [];
    first = run?.started?.inherited ?? 0;
    covered = span;
    plot.setAttribute("aria-label", summary());
    drawing.draw(() => figure(colours));
  }

  function figure(colours) {
    const x = steps.map((step) => step.index + 1);
    const many = plot.clientWidth / covered < 9;
    const line = (uid, y, colour, yaxis, width) => ({
      type: "scatter",
      mode: many ? "lines" : "lines+markers",
      uid,
      x,
      y,
      yaxis,
      line: { color: colour, width, shape: "linear" },
      marker: { size: 4 },
    });
    // The first step also reads the prompt: beside it all others would look alike, so it is cut off.
    const plain = steps.filter((step) => step.index !== 0 && step.index !== first);
    const longest = Math.max(1, ...(plain.length ? plain : steps).map((step) => step.ms));
    // Hundreds of bars are hundreds of elements; one stepped area looks the same.
    const times = (thin) => ({
      uid: thin ? "ms-area" : "ms",
      x,
      y: steps.map((step) => Math.min(step.ms, longest * 1.05)),
      yaxis: "y3",
      ...(thin
        ? {
            type: "scatter",
            mode: "lines",
            fill: "tozeroy",
            fillcolor: colours.cut,
            line: { shape: "hvh", width: 0 },
          }
        : { type: "bar", width: 0.8, marker: { color: colours.cut } }),
    });
    const among = steps.map((step) => Math.exp(step.entropy));
    const data = [
      line(
        "raw",
        steps.map((step) => step.raw),
        colours.raw,
        "y",
        many ? 2.5 : 4,
      ),
      line(
        "final",
        steps.map((step) => step.final),
        colours.final,
        "y",
        many ? 1 : 1.75,
      ),
      line("among", among, colours.raw, "y2", 1.5),
      times(many),
    ];
    const layout = baseLayout(colours, plot.clientWidth, HEIGHT, { ...MARGIN, t: 18, b: 26 });
    layout.xaxis = { ...stepsAxis(covered, colours, n), anchor: "y3" };
    layout.yaxis = shareAxis(ROWS[0], colours, n);
    layout.yaxis2 = amongAxis(ROWS[1], colours, n, Math.max(...among));
    layout.yaxis3 = rowAxis(ROWS[2], colours, {
      range: [0, longest * 1.05],
      tickvals: [0, longest],
      ticktext: [n.count(0), n.count(longest)],
    });
    return { data, layout };
  }

  return { element, draw, drawing };
}
