// One live line under each knob: what it does to the shown step now.

const CUTS = ["top_k", "top_p", "min_p", "typical_p", "no_repeat_ngram_size"];

/**
 * @param {{step: object, settings: object}|null} view the shown step and the settings it is shown under
 * @param {Function} t words, with keys under "effects" of the locales
 * @param {object} n numbers
 */
export function effects(view, t, n) {
  const settings = view?.settings ?? {};
  const greedy = settings.strategy === "greedy";
  const cold = !greedy && Number(settings.temperature) === 0;
  const found = new Map((view?.step.effects ?? []).map((effect) => [effect[0], effect]));
  const line = (name, text) => {
    const place = document.querySelector(`#effect-${name}`);
    if (place && place.textContent !== text) place.textContent = text;
  };
  const idle = (name) => (greedy ? t("idle") : cold && name !== "temperature" ? t("idle_cold") : null);

  line("temperature", idle("temperature") ?? temperature(view, found.get("temperature"), cold, t, n));
  for (const name of CUTS) {
    const held = name === "no_repeat_ngram_size" ? null : idle(name);
    line(name, held ?? (view ? cut(found.get(name), t, n) : ""));
  }
  const penalty = found.get("repetition_penalty");
  const more = Number(settings.repetition_penalty) < 1;
  line("repetition_penalty", !view ? "" : penalty
    ? t(more ? "penalty_more" : "penalty", { count: n.count(penalty[3]) })
    : t("penalty_none"));
}

function temperature(view, effect, cold, t, n) {
  if (!view) return "";
  if (cold) return t("cold");
  if (!effect) return t("temperature_same");
  return t("temperature", { before: n.probability(effect[4]), after: n.probability(effect[5]) });
}

function cut(effect, t, n) {
  if (!effect || !effect[1]) return t("cuts_none");
  return t("cuts", { count: n.count(effect[1]), share: n.probability(effect[2]) });
}
