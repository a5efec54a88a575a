// Columns to start from, and what a column's settings are called.
import { effect } from "./run.js";

/** Settings that differ from the neutral ones, by kind of column. */
export const KINDS = {
  greedy: { strategy: "greedy" },
  cold: { temperature: 0.5 },
  hot: { temperature: 1.5 },
  top_k: { top_k: 40 },
  top_p: { top_p: 0.9 },
  plain: {},
};

/** Kinds of columns that show one idea together. */
export const SETS = {
  warmth: ["greedy", "cold", "hot"],
  cut: ["plain", "top_k", "top_p"],
  seeds: ["seed", "seed", "seed", "seed"],
  all: ["greedy", "cold", "hot", "top_k", "top_p", "plain"],
};

/** @param {{name: string, value: number}[]} knobs with their neutral values */
export function settingsOf(kind, knobs, seed) {
  const neutral = Object.fromEntries(knobs.map((knob) => [knob.name, knob.value]));
  return { strategy: "sampling", ...neutral, ...KINDS[kind], seed };
}

/**
 * What settings amount to, whatever they were made from.
 *
 * @param {string} wish the kind that the column was made as; "seed" is a plain one that is told
 *     from others by its seed
 * @returns {string} a key of KINDS, "seed" or "own"
 */
export function kindOf(settings, wish, knobs) {
  const same = (kind) => effect(settings) === effect(settingsOf(kind, knobs));
  if (wish === "seed" && same("plain")) return "seed";
  return Object.keys(KINDS).find(same) ?? "own";
}
