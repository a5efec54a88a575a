// All texts of the two rounds as a table: what the pictures show, for those who can't see them.
import { h } from "./dom.js";

export function texts({ t, n }) {
  const body = h("tbody");
  const names = ["texts.number", "tip.prompt", "tip.tokens", "tip.arrived", "texts.first", "texts.second"];
  const heads = names.map((name) => h(name === "tip.prompt" ? "th.prompt" : "th", { scope: "col" }, t(name)));
  const table = h("table.lab-table", {}, h("thead", {}, h("tr", {}, ...heads)), body);
  const element = h("details.lab-texts", {}, h("summary", {}, t("texts.open")), h("div.scroll-x", {}, table));
  let lab = null;
  element.addEventListener("toggle", () => draw(lab));

  const waited = (round, i) => {
    const passage = round?.passages[i];
    return passage?.steps.length ? n.seconds(passage.steps[0] - passage.arrival) : "–";
  };

  function draw(next) {
    lab = next;
    if (!element.open || !lab) return;
    body.replaceChildren(
      ...lab.texts.map((text, i) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, n.count(text.number)),
          h("td.prompt", {}, h("bdi", {}, text.prompt)),
          h("td", {}, n.count(text.tokens)),
          h("td", {}, n.seconds(text.arrival)),
          ...[0, 1].map((which) => h("td", {}, waited(lab.rounds[which], i))),
        ),
      ),
    );
  }

  return { element, draw };
}
