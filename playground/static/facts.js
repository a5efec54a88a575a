// Sentences around the pictures: what the knobs leave, the state of the run, the quiet facts.
import { h, say } from "./dom.js";

/** What the knobs leave of a step, in one line, and how unsure that is. */
export function kept({ t, n }) {
  const [much, unsure] = [h("p.much"), h("p.unsure")];
  const element = h("div.kept", {}, much, unsure);

  const among = (entropy, key) =>
    Math.exp(entropy) < 1.05 ? t(`${key}_sure`) : t(key, { count: n.equalTokens(entropy) });

  function draw({ step, vocabulary }) {
    if (!step) {
      say(much, "");
      say(unsure, "");
      return;
    }
    const values = {
      kept: n.count(step.kept),
      count: n.count(vocabulary),
      share: n.probability(step.kept_prob),
    };
    const greedy = step.draw == null;
    const all = step.kept >= vocabulary;
    say(much, t(greedy ? "kept.greedy" : all ? "kept.all" : "kept.much", values));
    const changed = Math.abs(step.entropy - step.final_entropy) > 0.005;
    const model = among(step.entropy, "kept.unsure");
    say(unsure, changed ? `${model} ${among(step.final_entropy, "kept.then")}` : model);
  }

  return { element, draw };
}

/** The state line: spoken politely when the state changes, not for every token; errors at once. */
export function stateLine({ t, n }) {
  const status = h("p.status", { role: "status" });
  const alert = h("p.alert", { role: "alert" });
  const element = h("div.state", {}, status, alert);

  function sentence(run) {
    if (!run || run.error) return "";
    if (run.finished) {
      const { reason } = run.finished;
      if (reason === "length" && run.single) return t("state.one");
      return reason === "error" ? "" : t(`state.${reason}`, { count: n.count(run.length) });
    }
    if (run.waiting != null) return t("state.waiting", { place: n.count(run.waiting) });
    if (run.paused) return t("state.paused");
    return run.length ? t("state.writing") : t("state.reading");
  }

  function draw({ run, trouble }) {
    say(status, sentence(run));
    const failed =
      run?.finished?.reason === "error" ? run.finished.message || t("state.error") : "";
    const text = (run?.error && (run.error.text || t("state.error"))) || failed || trouble || "";
    say(alert, text);
    alert.hidden = !text;
  }

  return { element, draw };
}

/** One quiet line of facts. */
export function facts({ t, n, reuse }) {
  const element = h("dl.facts");
  let drawn = "";
  const again = (seed) =>
    h("button.link", { type: "button", click: () => reuse(seed) }, t("facts.seed_again"));

  function draw({ run }) {
    const { started, finished } = run ?? {};
    const list = [];
    const add = (key, value) =>
      value != null && value !== "" && list.push([key, String(value)]);
    if (started) {
      add("model", started.model);
      add("device", started.device);
      add("precision", started.precision);
      add("prompt", t("facts.tokens", { count: n.count(started.prompt.length) }));
    }
    if (finished) {
      if (finished.reused) add("reused", t("facts.tokens", { count: n.count(finished.reused) }));
      add("prefill", n.ms(finished.prefill_ms));
      if (finished.tokens_per_s)
        add("speed", t("facts.per_second", { count: n.speed(finished.tokens_per_s) }));
      add("cache", n.mib(finished.cache_bytes));
    }
    if (started) add("seed", started.seed);
    const text = JSON.stringify(list);
    if (text === drawn) return;
    drawn = text;
    element.replaceChildren(
      ...list.map(([key, value]) =>
        h(
          "div",
          { title: t(`facts.${key}_means`) },
          h("dt", {}, t(`facts.${key}`)),
          h("dd", {}, h("bdi", {}, value)),
          key === "seed" ? again(value) : null,
        ),
      ),
    );
  }

  return { element, draw };
}
