// A step's candidates as rows of bars and as segments of the ruler: arithmetic, no drawing.

const named = ([id, label, logit, raw, final, cut, special]) => ({
  id,
  label,
  logit,
  raw,
  final,
  cut,
  special,
});

const sum = (items, key) => items.reduce((total, item) => total + item[key], 0);

/**
 * The rows to draw: the likeliest by raw probability; the written token and the strategy's own
 * choice always among them, in place of the last ones where they rank lower.
 *
 * @returns {{rows: object[], rest: {count: number, raw: number, final: number}}} each row with
 *     `written`, `picked` and `place` (1 = likeliest; null where it is not known)
 */
export function rowsOf(step, count, vocabulary) {
  const all = step.candidates.map(named);
  all.forEach((row, i) => {
    row.written = row.id === step.id;
    row.picked = row.id === step.choice;
    row.place = i + 1;
  });
  const written = all.find((row) => row.written);
  if (written) written.place = step.rank;
  const rows = all.slice(0, count);
  const outside = all.slice(count).filter((row) => row.written || row.picked);
  if (outside.length) rows.splice(count - outside.length, outside.length, ...outside);
  for (const row of outside) if (!row.written) row.place = null;
  const rest = {
    count: Math.max(0, vocabulary - rows.length),
    raw: Math.max(0, 1 - sum(rows, "raw")),
    final: Math.max(0, 1 - sum(rows, "final")),
  };
  // Sums of many rounded numbers leave dust, which would read as a probability.
  if (rest.raw < 1e-9) rest.raw = 0;
  if (rest.final < 1e-9) rest.final = 0;
  return { rows, rest };
}

/**
 * The ruler of cumulative final probability, likeliest first: segments whose place is known, and
 * one for all the others. The choice is placed by its reported span, wherever it lies.
 *
 * @returns {{id: ?number, label: string, low: number, high: number, picked: boolean}[]} gaps
 *     between segments belong to tokens that are not listed
 */
export function segmentsOf(step) {
  const all = step.candidates.map(named).filter((item) => item.final > 0);
  const complete = all.length >= step.kept;
  // Where not every kept token is listed, an unlisted one may be likelier than a listed one that
  // a penalty pushed down; places are certain above the likeliest of the last few listed.
  const bound = complete ? 0 : Math.max(0, ...all.slice(-6, -3).map((item) => item.final));
  const sure = all
    .filter((item) => item.final >= bound)
    .sort((a, b) => b.final - a.final || a.id - b.id);
  const segments = [];
  let low = 0;
  for (const item of sure) {
    segments.push({ ...item, low, high: Math.min(1, low + item.final), picked: false });
    low += item.final;
  }
  const found = segments.find((segment) => segment.id === step.choice);
  if (found) found.picked = step.span != null;
  else if (step.span) {
    const item = all.find((candidate) => candidate.id === step.choice);
    if (item) segments.push({ ...item, low: step.span[0], high: step.span[1], picked: true });
  }
  return segments;
}

/** The label that a step's report has for a token, or "". */
export function labelOf(step, id) {
  if (step.id === id) return step.label;
  return step.candidates.find((candidate) => candidate[0] === id)?.[1] ?? "";
}
