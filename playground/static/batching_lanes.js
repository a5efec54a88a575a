// One round as a picture: a lane a slot, a block a text, and below them who waits for a slot.
import { h, say } from "./dom.js";

const LANE = { height: 30, gap: 5, strip: 10 };
const QUEUE = { most: 84, row: 10.5, gap: 6 };
const AXIS = 34;
const COLOURS = 8;
const NARROW = 560; // px: below that, lanes are named by their number alone
const SPANS = [2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600]; // seconds an axis may cover
const BRIEF = 0.008; // part of the axis: less waiting than that would be a speck

/** The shortest axis that holds `ms` and is not shorter than before: it grows in big steps. */
export function span(ms, before = 5000) {
  const needed = Math.max(before, ms * 1.02);
  return 1000 * (SPANS.find((seconds) => seconds * 1000 >= needed) ?? Math.ceil(needed / 1000));
}

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  put(made, attributes);
  made.append(...children);
  return made;
}

/** Writes what changed, so that nothing that stands still is drawn again. */
function put(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    const text = String(value);
    if (element.getAttribute(key) !== text) element.setAttribute(key, text);
  }
}

/** Who waits in which row below the lanes: the first that is free when it comes. */
function queueRows(passages, now, brief) {
  const rows = [];
  const placed = [];
  for (const passage of passages) {
    const until = passage.start ?? now;
    if (passage.arrival > now || until - passage.arrival < brief) continue;
    let row = rows.findIndex((end) => end <= passage.arrival);
    if (row < 0) row = rows.length;
    rows[row] = passage.start ?? Infinity;
    placed.push({ passage, row, until });
  }
  return placed;
}

/**
 * @param {object} options t, n: words and numbers; way: "static" or "continuous";
 *     axis: whether the seconds are written below this one; tip: the hover card
 */
export function lanes({ t, n, way, axis, tip }) {
  const hatch = node(
    "pattern",
    { id: `hatch-${way}`, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    node("rect", { class: "hatch-line", width: 2, height: 5 }),
  );
  const layers = ["guides", "slots", "queue", "blocks", "marks"].map((name) => node("g", { class: name }));
  const [guides, slots, queue, blocks, marks] = layers;
  const svg = node("svg", { class: "lanes", role: "img" }, node("defs", {}, hatch), ...layers);
  const invitation = h("p.lab-invitation");
  const now = h("span.lab-now");
  const element = h(
    "figure.round",
    { "data-way": way },
    h("figcaption", {}, h("h4", {}, t(way)), h("span.rule", {}, t(`${way}_rule`)), now),
    h("div.lanes-place", {}, svg, invitation),
  );
  const groups = new Map(); // by number, of blocks and of waiting texts
  let shown = null; // {round, lab}
  let furnished = ""; // what the furniture stands for

  function explain(event) {
    const found = event.target.closest?.("[data-number]");
    const passage = found && shown?.round?.passages[Number(found.dataset.number) - 1];
    if (!passage) return tip.hide();
    const waited = passage.steps.length ? n.seconds(passage.steps[0] - passage.arrival) : "–";
    const served = passage.start == null ? "–" : n.seconds((passage.end ?? shown.round.now) - passage.start);
    return tip.show(t("tip.title", { number: n.count(passage.number) }), [
      [t("tip.prompt"), passage.prompt],
      [t("tip.tokens"), t("tip.progress", { done: n.count(passage.steps.length), count: n.count(passage.tokens) })],
      [t("tip.arrived"), n.seconds(passage.arrival)],
      [t("tip.waited"), waited],
      [t("tip.served"), served],
    ], found.getBoundingClientRect());
  }
  svg.addEventListener("pointermove", explain);
  svg.addEventListener("click", explain);
  svg.addEventListener("pointerleave", tip.hide);

  function geometry(width, lab, covered) {
    const left = width < NARROW ? 22 : 76;
    const right = width - 16;
    const lanesHeight = lab.slots * (LANE.height + LANE.gap);
    // Where all come at once, so many wait at most; else perhaps all but the first.
    const spread = lab.texts.some((text) => text.arrival > 0);
    const most = Math.max(1, lab.requests - (spread ? 1 : lab.slots));
    const row = Math.min(QUEUE.row, QUEUE.most / most);
    const queueTop = lanesHeight + QUEUE.gap;
    const queueHeight = Math.ceil(row * most);
    return {
      left, right, row, most, queueTop, queueHeight, covered,
      bottom: queueTop + queueHeight,
      height: queueTop + queueHeight + (axis ? AXIS : 6),
      x: (ms) => left + (Math.min(ms, covered) / covered) * (right - left),
      y: (slot) => slot * (LANE.height + LANE.gap) + 1,
    };
  }

  /** What stays while a round goes on: names of lanes, the seconds. */
  function furniture(g, lab) {
    const seconds = g.covered / 1000;
    const step = [0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600].find((one) => seconds / one <= 6) ?? 1200;
    const key = JSON.stringify([g.left, g.right, g.covered, g.height, lab.slots]);
    if (furnished === key) return;
    furnished = key;
    const lines = [];
    for (let at = 0; at <= seconds + 1e-9; at += step) {
      const x = g.x(at * 1000);
      lines.push(node("line", { x1: x, x2: x, y1: 0, y2: g.bottom + (axis ? 5 : 0) }));
      if (!axis) continue;
      const text = node("text", { x, y: g.bottom + 18, "text-anchor": "middle" });
      text.textContent = n.tick(at);
      lines.push(text);
    }
    if (axis) {
      const title = node("text", { x: g.right, y: g.bottom + 32, "text-anchor": "end" });
      title.textContent = t("axis");
      lines.push(title);
    }
    for (let slot = 0; slot < lab.slots; slot += 1) {
      const name = node("text", { class: "lane-name", x: g.left - 8, y: g.y(slot) + LANE.height / 2 + 5, "text-anchor": "end" });
      name.textContent = g.left < 50 ? n.count(slot + 1) : t("slot", { count: n.count(slot + 1) });
      lines.push(name);
    }
    if (g.left > 50) {
      const name = node("text", { class: "lane-name", x: g.left - 8, y: g.queueTop + 11, "text-anchor": "end" });
      name.textContent = t("waiting");
      lines.push(name);
    }
    guides.replaceChildren(...lines);
    slots.replaceChildren(
      ...Array.from({ length: lab.slots }, (_, slot) =>
        node("rect", { class: "idle", rx: 4, x: g.left, y: g.y(slot), height: LANE.height, width: 0 }),
      ),
    );
  }

  function group(layer, name, passage, make) {
    const key = `${name}${passage.number}`;
    if (!groups.has(key)) {
      const made = node("g", { "data-number": passage.number, class: `${name} tone-${(passage.number - 1) % COLOURS}` }, ...make());
      groups.set(key, made);
      layer.append(made);
    }
    return groups.get(key);
  }

  function block(g, passage, moment) {
    const made = group(blocks, "block", passage, () => [
      node("rect", { class: "body", rx: 4, height: LANE.height }),
      node("rect", { class: "prefill", height: LANE.strip, fill: `url(#hatch-${way})` }),
      node("path", { class: "ticks" }),
      node("text", { class: "number" }),
    ]);
    const [body, prefill, ticks, number] = made.children;
    const top = g.y(passage.slot);
    const [from, to] = [g.x(passage.start), g.x(passage.end ?? moment)];
    const width = Math.max(1.5, to - from);
    put(body, { x: from, y: top, width });
    const strip = top + LANE.height - LANE.strip - 2;
    put(prefill, { x: from, y: strip, width: Math.max(0, g.x(passage.steps[0] ?? passage.end ?? moment) - from) });
    put(ticks, { d: passage.steps.map((ms) => `M${g.x(ms).toFixed(1)} ${strip}v${LANE.strip}`).join("") });
    put(number, { x: from + 5, y: top + 15 });
    say(number, width >= (passage.number > 9 ? 24 : 15) ? String(passage.number) : "");
  }

  function waiting(g, { passage, row, until }) {
    const made = group(queue, "wait", passage, () => [node("rect", { rx: 2 }), node("text")]);
    const [bar, number] = made.children;
    const top = g.queueTop + Math.min(row, g.most - 1) * g.row;
    const [from, to] = [g.x(passage.arrival), g.x(until)];
    put(bar, { x: from, y: top, width: Math.max(1, to - from), height: Math.max(2, g.row - 1.5) });
    put(number, { x: from + 5, y: top + g.row - 3 });
    say(number, g.row >= 8.5 && to - from > 22 ? String(passage.number) : "");
    put(made, { "data-waiting": passage.start == null });
  }

  /** Where a static batch starts. */
  function batches(g, passages) {
    const starts = way === "static" ? [...new Set(passages.filter((p) => p.start != null).map((p) => p.start))] : [];
    const lines = starts.slice(1).map((ms) => ({ x: g.x(ms) - 1.5, y2: g.queueTop - QUEUE.gap }));
    while (marks.children.length > lines.length) marks.lastChild.remove();
    while (marks.children.length < lines.length) marks.append(node("line", { class: "batch", y1: 0 }));
    lines.forEach(({ x, y2 }, i) => put(marks.children[i], { x1: x, x2: x, y2 }));
  }

  /**
   * @param {object} lab {slots, requests: number of them, texts, handle}
   * @param {object|null} round null before it has begun
   * @param {number} covered ms that the axis covers
   */
  function draw({ lab, round, covered, text }) {
    const width = svg.parentNode.clientWidth;
    if (!width) return;
    if (shown?.lab.handle !== lab.handle) {
      groups.clear();
      for (const layer of [queue, blocks, marks]) layer.replaceChildren();
    }
    shown = { lab, round };
    const g = geometry(width, lab, covered);
    put(svg, { width, height: g.height, viewBox: `0 0 ${width} ${g.height}` });
    furniture(g, lab);
    say(invitation, text);
    say(now, round ? n.seconds(round.now) : "");
    const moment = round?.now ?? 0;
    for (const rect of slots.children) put(rect, { width: Math.max(0, g.x(moment) - g.left) });
    if (!round) return;
    put(svg, { "aria-label": `${t(way)}. ${t("summary", { count: n.count(lab.requests), slots: n.count(lab.slots), time: n.seconds(round.now) })}` });
    for (const passage of round.passages) if (passage.start != null) block(g, passage, moment);
    for (const place of queueRows(round.passages, moment, covered * BRIEF)) waiting(g, place);
    batches(g, round.passages);
  }

  return { element, draw };
}
