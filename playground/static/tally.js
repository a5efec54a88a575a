// The shown step drawn again and again with fresh numbers, counted for as long as it is shown.

/**
 * @param {(query: object) => Promise<{counts?: [number, number][], error?: object}>} redraw
 * @param {() => void} changed called when something is to be drawn
 */
export function tallies(redraw, changed) {
  let now = null; // {key, times, counts: Map}
  let busy = false;

  function add(key, pairs) {
    const before = now?.key === key ? now : { times: 0, counts: new Map() };
    const counts = new Map(before.counts);
    for (const [id, count] of pairs) counts.set(id, (counts.get(id) ?? 0) + count);
    now = { key, counts, times: before.times + pairs.reduce((sum, [, count]) => sum + count, 0) };
  }

  return {
    get busy() {
      return busy;
    },
    /** The tally of the picture with this key; any other is dropped. */
    of(key) {
      if (now?.key !== key) now = null;
      return now;
    },
    /** Draws and adds up; the answer counts only while `current()` is still the same picture. */
    async draw(key, query, current) {
      if (busy || key == null) return undefined;
      busy = true;
      changed();
      let answer;
      try {
        answer = await redraw(query);
        if (answer?.counts && current() === key) add(key, answer.counts);
      } catch (error) {
        console.error(error);
        answer = { error: {} };
      }
      busy = false;
      changed();
      return answer?.error;
    },
  };
}
