// One live line under each knob: what it does to the shown step now, or why it does nothing.

const CUTS = ["top_k", "top_p", "min_p", "typical_p", "no_repeat_ngram_size"];
const OF_THE_DRAW = ["temperature", "top_k", "top_p", "min_p", "typical_p", "seed"];

/**
 * @param {object} settings the knobs
 * @param {object|null} step the shown step, weighed under these settings; null before the first
 * @param {Function} t words, with keys under "effects" of the locales
 * @param {object} n numbers
 */
export function effects(settings, step, t, n) {
  const greedy = settings.strategy === "greedy";
  const cold = !greedy && Number(settings.temperature) === 0;
  const did = new Map((step?.effects ?? []).map((effect) => [effect[0], named(effect)]));
  const lines = { seed: "", temperature: step ? temperature(did.get("temperature"), t, n) : "" };
  for (const name of CUTS) lines[name] = step ? cut(did.get(name), t, n) : "";
  lines.repetition_penalty = step ? penalty(did.get("repetition_penalty"), settings, t, n) : "";

  for (const name of OF_THE_DRAW) {
    const turnsIt = name === "temperature" && cold;
    if (greedy) lines[name] = t("idle");
    else if (cold) lines[name] = turnsIt ? t("cold") : t("idle_cold");
    const control = document.querySelector(`#knob-${name}, #${name}`);
    control?.classList.toggle("idle", greedy || (cold && !turnsIt));
  }
  for (const [name, text] of Object.entries(lines)) {
    const place = document.querySelector(`#effect-${name}`);
    if (!place) continue;
    if (place.textContent !== text) place.textContent = text;
    // Loud only where something happens.
    place.classList.toggle("does", Boolean(did.get(name)?.acts) && !greedy);
  }
}

const named = ([name, cut, share, changed, before, after]) => ({
  cut,
  share,
  changed,
  before,
  after,
  acts: cut > 0 || changed > 0 || name === "temperature",
});

function temperature(did, t, n) {
  if (!did) return t("temperature_same");
  return t("temperature", { before: n.probability(did.before), after: n.probability(did.after) });
}

function cut(did, t, n) {
  if (!did?.cut) return t("cuts_none");
  return t("cuts", { count: n.count(did.cut), share: n.probability(did.share) });
}

function penalty(did, settings, t, n) {
  if (!did) return t("penalty_none");
  const key = Number(settings.repetition_penalty) < 1 ? "penalty_more" : "penalty";
  return t(key, { count: n.count(did.changed) });
}
