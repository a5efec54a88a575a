// The measures of a text, as its column shows them; they are computed in model/text_measures.py.
import { h, say } from "./dom.js";

export const NAMES = ["logprob", "final_logprob", "distinct_1", "distinct_2", "repetition"];

const LOGS = new Set(["logprob", "final_logprob"]);

/** Share of the bar: a mean log-probability as the probability that it is the logarithm of. */
const share = (name, value) => (LOGS.has(name) ? Math.exp(value) : value);

export function measures({ t, n }) {
  const rows = NAMES.map((name) => {
    const value = h("dd");
    const bar = h("i");
    const node = h(
      "div.measure",
      { title: t(`compare.${name}_means`), "data-measure": name },
      h("dt", {}, t(`compare.${name}`)),
      value,
      h("span.meter", { "aria-hidden": "true" }, bar),
    );
    return { name, node, value, bar };
  });
  const element = h("dl.measures", {}, ...rows.map(({ node }) => node));

  function text(name, all) {
    if (all?.[name] == null) return "–";
    if (!LOGS.has(name)) return n.unit(all[name]);
    return n.signed(all[name]);
  }

  function draw(all) {
    for (const { name, value, bar } of rows) {
      say(value, text(name, all));
      bar.style.width = `${100 * (all?.[name] == null ? 0 : share(name, all[name]))}%`;
    }
  }

  return { element, draw };
}

/** What each measure is, and who defined it. */
export function meanings({ t }) {
  return h(
    "details.meanings",
    {},
    h("summary", {}, t("compare.meanings")),
    h(
      "dl",
      {},
      ...NAMES.flatMap((name) => [
        h("dt", {}, t(`compare.${name}`)),
        h("dd", {}, t(`compare.${name}_means`)),
      ]),
    ),
  );
}
