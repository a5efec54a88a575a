// What was measured of the two rounds: one sentence, a small table, and what disturbed it.
import { h, say } from "./dom.js";

const ALIKE = 0.05; // a difference of less than this is called about the same
const NOTICED = 0.005; // part of the time that others must have run to be worth a line

const ROWS = [
  ["throughput", "tokens_per_s", 1],
  ["mean_wait", "mean_wait_s", -1],
  ["worst_wait", "worst_wait_s", -1],
  ["slot_use", "slot_use", 1],
  ["total", "total_s", -1],
];

export function report({ t, n }) {
  const write = {
    throughput: (value) => t("table.per_second", { count: n.speed(value) }),
    mean_wait: (value) => n.seconds(value * 1000),
    worst_wait: (value) => n.seconds(value * 1000),
    slot_use: (value) => n.share(value),
    total: (value) => n.seconds(value * 1000),
  };
  const cells = new Map();
  const rows = ROWS.map(([name]) => {
    const made = ["static", "continuous", "ratio"].map((which) => h(`td.${which}`, {}, "–"));
    cells.set(name, made);
    return h("tr", { "data-row": name }, h("th", { scope: "row", title: t(`table.${name}_means`) }, t(`table.${name}`)), ...made);
  });
  const heads = [t("static"), t("continuous"), t("table.ratio")].map((text) => h("th", { scope: "col" }, text));
  const disturbed = h("ul.lab-disturbed", { role: "note" });
  const seed = h("p.caption.lab-seed");
  const element = h(
    "section.card.lab-measured",
    {},
    h("header", {}, h("h3", {}, t("table.title"))),
    disturbed,
    h("div.scroll-x", {}, h("table.lab-table", {}, h("thead", {}, h("tr", {}, h("td"), ...heads)), h("tbody", {}, ...rows))),
    seed,
  );

  /** One sentence, true of whatever came out. */
  function sentence([before, after]) {
    const speed = after.tokens_per_s / before.tokens_per_s;
    const wait = after.mean_wait_s / before.mean_wait_s;
    const rates = { ratio: n.times(speed), before: write.throughput(before.tokens_per_s), after: write.throughput(after.tokens_per_s) };
    const waits = { before: write.mean_wait(before.mean_wait_s), after: write.mean_wait(after.mean_wait_s) };
    const seen = speed >= 1 + ALIKE ? "more" : speed <= 1 - ALIKE ? "less" : "same";
    const came = wait <= 1 - ALIKE ? "sooner" : wait >= 1 + ALIKE ? "later" : "as_soon";
    return `${t(`seen.${seen}`, rates)}; ${t(`seen.${came}`, waits)}`;
  }

  /** What makes the measurement worth less. */
  function troubles(measures) {
    const time = measures.reduce((sum, one) => sum + one.total_s, 0);
    const others = measures.reduce((sum, one) => sum + one.others_share * one.total_s, 0) / time;
    const held = measures.reduce((sum, one) => sum + one.held_s, 0);
    const lines = [];
    if (others >= NOTICED) lines.push(t("disturbed.others", { share: n.share(others) }));
    if (held / time >= NOTICED) lines.push(t("disturbed.held", { time: n.seconds(held * 1000) }));
    const [before, after] = measures.map((one) => one.reused);
    if (after !== undefined && after !== before) {
      lines.push(t("disturbed.reused", { before: n.count(before), after: n.count(after) }));
    }
    return lines;
  }

  function draw(lab) {
    const measures = (lab?.rounds ?? []).map((round) => round.measures).filter(Boolean);
    for (const [name, field, better] of ROWS) {
      const values = [0, 1].map((i) => measures[i]?.[field]);
      const [first, second, ratio] = cells.get(name);
      say(first, values[0] === undefined ? "–" : write[name](values[0]));
      say(second, values[1] === undefined ? "–" : write[name](values[1]));
      const both = values[1] !== undefined && values[0] > 0;
      say(ratio, both ? t("table.times", { value: n.times(values[1] / values[0]) }) : "–");
      const lead = both ? (values[1] / values[0] - 1) * better : 0;
      first.classList.toggle("better", lead < -ALIKE);
      second.classList.toggle("better", lead > ALIKE);
    }
    const lines = measures.length ? troubles(measures) : [];
    const text = lines.join("\n");
    if (disturbed.dataset.text !== text) {
      disturbed.dataset.text = text;
      disturbed.replaceChildren(...lines.map((line) => h("li", {}, line)));
    }
    disturbed.hidden = !lines.length;
    say(seed, lab?.seed == null ? "" : t("table.seed", { seed: String(lab.seed) }));
    return measures.length === 2 ? sentence(measures) : "";
  }

  return { element, draw };
}
