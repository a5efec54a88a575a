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
    say(much, t(step.kept >= vocabulary ? "kept.all" : "kept.much", values));
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
      return reason === "error" ? "" : t(`state.${reason}`, { count: n.count(run.length) });
    }
    if (run.waiting != null) return t("state.waiting", { place: n.count(run.waiting) });
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
export function facts({ t, n }) {
  const element = h("dl.facts");
  let drawn = "";

  function draw({ run }) {
    const { started, finished } = run ?? {};
    const list = [];
    const add = (key, value) =>
      value != null && value !== "" && list.push([t(`facts.${key}`), String(value)]);
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
      ...list.map(([name, value]) =>
        h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, value))),
      ),
    );
  }

  return { element, draw };
}
