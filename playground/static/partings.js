// Where the texts of several runs part: arithmetic, no drawing.

/**
 * Compares every run with the first one, token by token.
 *
 * @param {(object|null)[]} runs
 * @returns {{reference: number, at: (number|null)[], same: number[]}} place of the first run (−1
 *     without any); index of each run's first token that differs from the first run's, or null;
 *     how many tokens are known to agree before that. A text that only ended sooner has not parted.
 */
export function partings(runs) {
  const reference = runs.findIndex(Boolean);
  const first = runs[reference];
  const at = runs.map(() => null);
  const same = runs.map((run, i) => {
    if (!run) return 0;
    const both = Math.min(run.length, first.length);
    for (let index = 0; i !== reference && index < both; index += 1) {
      if (run.arrived[index].id !== first.arrived[index].id) {
        at[i] = index;
        return index;
      }
    }
    return both;
  });
  return { reference, at, same };
}

/** Signs for the chips of every column: what stands at which token. */
export function signs({ reference, at }, letters, t) {
  return letters.map((letter, i) => {
    const marks = new Map();
    const put = (index, others) => {
      const text = `≠${others.join("")}`;
      marks.set(index, { text, meaning: t("compare.differs", { list: others.join(", ") }) });
    };
    if (i !== reference) {
      if (at[i] != null) put(at[i], [letters[reference]]);
      return marks;
    }
    for (const index of new Set(at)) {
      if (index != null) put(index, letters.filter((_, other) => at[other] === index));
    }
    return marks;
  });
}

/** One sentence: how far all agree, and who chooses what then. */
export function verdict({ reference, at, same }, columns, { t, n, running }) {
  const runs = columns.map((column) => column.run);
  const others = runs.map((run, i) => (run && i !== reference ? i : -1)).filter((i) => i >= 0);
  if (!others.length) return "";
  const places = others.map((i) => at[i]).filter((index) => index != null);
  if (!places.length) {
    const count = n.count(Math.min(...others.map((i) => same[i])));
    if (count === n.count(0)) return "";
    return t(running ? "compare.agree_so_far" : "compare.agree", { count });
  }
  const first = Math.min(...places);
  const leavers = others.filter((i) => at[i] === first);
  const label = (i) => runs[i].step(first).label;
  const values = {
    count: n.count(first),
    reference: columns[reference].title,
    other: label(reference),
    name: columns[leavers[0]].title,
    label: label(leavers[0]),
    list: leavers.map((i) => `${columns[i].letter} “${label(i)}”`).join(", "),
  };
  const key = leavers.length > 1 ? "several" : "one";
  return t(first ? `compare.part_${key}` : `compare.part_${key}_at_once`, values);
}
