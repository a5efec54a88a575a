// The hero: what the model offers at one step. Plotly draws the bars; the labels, numbers and
// places to click are buttons over them, so that keyboard, touch and screen reader have them too.
import { rowsOf } from "./candidates.js";
import { h, middle, say } from "./dom.js";
import { baseLayout, changes, picture } from "./picture.js";

export const ROW = 32; // px per row, the same for any number of rows
const FOOT = 26; // px under the rows, for the axis
const LETTER = 9.7; // px, the widest that a letter of a label gets
// Room left and right inside the drawing for the ends of the axis, by its width, px.
const side = (width) => (width < 240 ? 10 : 20);

const TICKS = { linear: [0, 0.25, 0.5, 0.75, 1], log: [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1] };

/** What the bars' colours and signs mean. */
export function key({ t }) {
  const entry = (name) =>
    h("span.entry", {}, h(`i.${name}`, { "aria-hidden": "true" }), t(`key.${name}`));
  return h("div.key", {}, ...["final", "raw", "cut", "written"].map(entry));
}

/**
 * @param {object} options t, n, tip; force(index, token): what a click on a bar does, or nothing:
 *     then the bars are there to be read
 */
export function distribution({ t, n, tip, force }) {
  const plot = h("div.plot", { "aria-hidden": "true" });
  const rows = h("div.bar-rows", { role: "group" });
  const element = h(force ? "div.bars" : "div.bars.read", {}, plot, rows);
  const drawing = picture(plot);
  const changed = changes();
  const buttons = [];
  const rest = h("div.bar-row.rest", {}, h("span.label"), h("span"), h("span.value"));
  let shown = null;
  let stop = 0; // the row that holds the tab stop
  let refocus = false;

  const cutName = (cut) => t(`cut.${cut}`);

  function button(i) {
    const node = h(
      "button.bar-row",
      { type: "button", tabindex: i ? "-1" : "0" },
      h("span.label", { "aria-hidden": "true" }, h("span.far"), h("span.sign"), h("bdi")),
      h("span"),
      h("span.value", { "aria-hidden": "true" }, h("span.amount"), h("span.tally")),
    );
    const explain = () => {
      const row = shown.rows[i];
      if (row) tip.show(row.label, lines(row), node.firstChild.getBoundingClientRect());
    };
    node.addEventListener(
      "click",
      () => shown.rows[i] && force?.(shown.step.index, shown.rows[i].id),
    );
    node.addEventListener("pointerenter", explain);
    node.addEventListener("pointerleave", tip.hide);
    node.addEventListener("focus", explain);
    node.addEventListener("blur", tip.hide);
    return node;
  }

  function lines(row) {
    const all = [
      [t("word.raw"), n.probability(row.raw)],
      [t("word.final"), n.probability(row.final)],
    ];
    if (row.place) all.push([t("word.rank"), n.count(row.place)]);
    if (row.cut) all.push([t("word.cut_by"), cutName(row.cut)]);
    const drawn = shown.tally?.counts.get(row.id);
    if (shown.tally) all.push([t("word.drawn"), t("word.times", { count: n.count(drawn ?? 0) })]);
    return all;
  }

  rows.addEventListener("keydown", (event) => {
    const last = shown ? shown.rows.length - 1 : 0;
    const to = {
      ArrowDown: Math.min(last, stop + 1),
      ArrowUp: Math.max(0, stop - 1),
      Home: 0,
      End: last,
    }[event.key];
    if (to == null) return;
    event.preventDefault();
    focusable(to);
    buttons[to].focus();
  });

  function focusable(to) {
    buttons.forEach((node, i) => (node.tabIndex = i === to ? 0 : -1));
    stop = to;
  }

  function fill(row, i, room) {
    const node = buttons[i];
    node.hidden = !row;
    if (!row) return;
    node.dataset.token = row.id;
    node.classList.toggle("cut", Boolean(row.cut));
    node.classList.toggle("written", row.written);
    node.classList.toggle("picked", row.picked && !row.written);
    const sign = row.written ? "▶" : row.picked ? "▷" : "";
    const far = row.place && row.place > i + 1 ? `#${n.count(row.place)}` : "";
    say(node.querySelector(".far"), far);
    say(node.querySelector(".sign"), sign);
    const text = node.querySelector("bdi");
    const taken = (sign ? 20 : 0) + (far ? 12 + 8 * far.length : 0);
    say(text, middle(row.label, Math.max(6, Math.floor((room - taken) / LETTER))));
    text.classList.toggle("capsule", row.special);
    const amount = row.cut
      ? t("bars.cut_by", { name: cutName(row.cut) })
      : n.probability(row.final);
    say(node.querySelector(".amount"), amount);
    const hits = shown.tally?.counts.get(row.id) ?? 0;
    say(node.querySelector(".tally"), mark(hits));
    const values = {
      label: row.label,
      final: n.probability(row.final),
      raw: n.probability(row.raw),
    };
    const name = [t(force ? "bars.row" : "bars.row_read", values)];
    if (row.cut) name.push(amount);
    if (row.written) name.push(t("bars.written"));
    if (shown.tally) name.push(`${t("word.drawn")}: ${hits}`);
    node.setAttribute("aria-label", name.join(", "));
  }

  const mark = (count) => (count ? `×${n.count(count)}` : "");

  /**
   * @param {object} model step, count (of rows), vocabulary, log, colours and
   *     tally ({times, counts: Map}) or null
   */
  function draw(model) {
    const { step, count, vocabulary, log, colours, tally } = model;
    const width = plot.clientWidth;
    if (!changed(step, count, vocabulary, log, colours, tally, width)) return;
    element.style.height = `${(count + 1) * ROW + FOOT}px`;
    while (buttons.length < count) {
      buttons.push(button(buttons.length));
      rows.append(buttons.at(-1));
    }
    rows.append(rest);
    buttons.slice(count).forEach((node) => (node.hidden = true));
    rest.hidden = !step;
    if (!step) {
      refocus ||= buttons.includes(document.activeElement);
      buttons.forEach((node) => (node.hidden = true));
      shown = { step: null, rows: [] };
      drawing.purge();
      return;
    }
    const data = rowsOf(step, count, vocabulary);
    shown = { ...model, rows: data.rows };
    const room = buttons[0].firstChild.clientWidth || 160;
    for (let i = 0; i < count; i += 1) fill(data.rows[i], i, room);
    if (stop >= data.rows.length) focusable(0);
    // A bar that was pressed is gone until its branch has a step; then it is under the keys again.
    if (refocus && document.activeElement === document.body) buttons[stop].focus();
    refocus = false;
    rest.style.order = 1;
    say(rest.firstChild, t("bars.rest", { count: n.count(data.rest.count) }));
    const others = model.tally ? unlisted(model.tally, data.rows) : 0;
    say(rest.lastChild, `${n.probability(data.rest.final)} ${mark(others)}`.trim());
    rows.setAttribute("aria-label", summary(step, data.rows));
    drawing.draw(() => figure(model, data));
  }

  function summary(step, list) {
    const likeliest = list.slice(0, 3).map((row) => `${row.label} ${n.probability(row.final)}`);
    return t("bars.summary", { index: n.count(step.index + 1), list: likeliest.join("; ") });
  }

  const unlisted = (tally, list) =>
    tally.times - list.reduce((total, row) => total + (tally.counts.get(row.id) ?? 0), 0);

  function figure({ count, log, colours, tally }, data) {
    const floor = log ? TICKS.log[0] : 0;
    const positive = (value) => (value > floor ? value : null);
    const list = data.rows.map((row, y) => ({ ...row, y }));
    if (data.rest) list.push({ ...data.rest, y: count, other: true });
    const ys = list.map((row) => row.y);
    const bar = { type: "bar", orientation: "h", width: 0.66, y: ys };
    const outline = (row) =>
      row.written ? colours.ink : row.other || row.picked ? colours.final : colours.paper;
    const hits = (row) =>
      row.other ? unlisted(tally, data.rows) : (tally.counts.get(row.id) ?? 0);
    const traces = [
      {
        ...bar,
        uid: "final",
        x: list.map((row) => positive(row.final)),
        marker: {
          color: list.map((row) => (row.other ? colours.paper : colours.final)),
          line: {
            color: list.map(outline),
            width: list.map((row) => (row.written ? 2.5 : row.other ? 1.5 : 0)),
          },
        },
      },
      {
        ...bar,
        uid: "cut",
        x: list.map((row) => (row.cut ? positive(row.raw) : null)),
        marker: {
          color: colours.cutBack,
          line: { color: colours.cut, width: 1 },
          pattern: {
            shape: "/",
            size: 6,
            solidity: 0.25,
            fgcolor: colours.cut,
            bgcolor: colours.cutBack,
          },
        },
      },
      {
        type: "scatter",
        mode: "markers",
        uid: "raw",
        y: ys,
        x: list.map((row) => positive(row.raw)),
        marker: { symbol: "line-ns", size: ROW * 0.55, line: { width: 3, color: colours.raw } },
        cliponaxis: false,
      },
      {
        type: "scatter",
        mode: "markers",
        uid: "tally",
        y: tally ? ys : [],
        x: tally ? list.map((row) => positive(hits(row) / tally.times)) : [],
        marker: {
          symbol: "diamond",
          size: 11,
          color: colours.tally,
          line: { width: 1.5, color: colours.paper },
        },
        cliponaxis: false,
      },
    ];
    const width = plot.clientWidth;
    const layout = baseLayout(colours, width, (count + 1) * ROW + FOOT, {
      l: side(width),
      r: side(width),
      t: 0,
      b: FOOT,
    });
    const all = log ? TICKS.log : TICKS.linear;
    // Every tick, every second one, or the ends alone, as there is room.
    const room = width / (log ? 2 : 1);
    const every = room > 220 ? 1 : room > 130 ? 2 : all.length - 1;
    const ticks = all.filter((_, i) => (all.length - 1 - i) % every === 0);
    layout.barmode = "overlay";
    layout.xaxis = {
      type: log ? "log" : "linear",
      range: log ? [Math.log10(floor), 0.02] : [0, 1.005],
      fixedrange: true,
      ticklabeloverflow: "allow",
      tickvals: ticks,
      ticktext: ticks.map((tick) => (log ? n.probability(tick) : n.share(tick))),
      gridcolor: colours.line,
      zeroline: false,
      ticks: "",
      tickangle: 0,
      layer: "below traces",
    };
    layout.yaxis = { range: [count + 0.5, -0.5], visible: false, fixedrange: true };
    return { data: traces, layout };
  }

  return { element, draw, drawing };
}
