// The distribution as a table: the chart's text alternative, with a button to write each token.
import { rowsOf } from "./candidates.js";
import { h } from "./dom.js";

export function table({ t, n, force }) {
  const body = h("tbody");
  const caption = h("caption");
  const heads = ["token", "raw", "final", "cut_by", "force"].map((key) =>
    h("th", { scope: "col" }, t(`table.${key}`)),
  );
  const grid = h(
    "div.scroll-x",
    {},
    h("table", {}, caption, h("thead", {}, h("tr", {}, ...heads)), body),
  );
  const element = h("details.as-table", {}, h("summary", {}, t("table.open")), grid);
  let model = null;
  let drawn = null;
  element.addEventListener("toggle", () => model && draw(model));

  function row(item, index) {
    const act = item.written
      ? t("bars.written")
      : h(
          "button.link",
          {
            type: "button",
            "aria-label": t("table.force_label", { label: item.label }),
            click: () => force(index, item.id),
          },
          t("table.force_this"),
        );
    return h(
      "tr",
      {},
      h("th.token", { scope: "row" }, h("bdi", {}, item.label)),
      h("td", {}, n.probability(item.raw)),
      h("td", {}, n.probability(item.final)),
      h("td", {}, item.cut ? t(`cut.${item.cut}`) : "–"),
      h("td", {}, act),
    );
  }

  function draw(next) {
    model = next;
    const { step, count, vocabulary } = next;
    // Fresh rows would take the focus away from a reader's place: only for another picture.
    if (!element.open || !step || (drawn?.step === step && drawn.count === count)) return;
    drawn = next;
    const { rows, rest } = rowsOf(step, count, vocabulary);
    caption.textContent = t("hero.title", { index: n.count(step.index + 1) });
    body.replaceChildren(
      ...rows.map((item) => row(item, step.index)),
      h(
        "tr",
        {},
        h("th", { scope: "row" }, t("bars.rest", { count: n.count(rest.count) })),
        h("td", {}, n.probability(rest.raw)),
        h("td", {}, n.probability(rest.final)),
        h("td"),
        h("td"),
      ),
    );
  }

  return { element, draw };
}
