// Asks for a step under other settings: one question in flight, the latest wins, answers kept.

const KEPT = 200;

/**
 * @param {(query: object) => Promise<{step?: object, error?: object}>} look
 * @param {() => void} changed called when an answer or an error has come
 */
export function looker(look, changed) {
  const answers = new Map();
  let flying = false;
  let wanted = null;

  async function fly() {
    flying = true;
    while (wanted) {
      const { key, query } = wanted;
      wanted = null;
      let answer;
      try {
        answer = await look(query);
      } catch (error) {
        console.error(error);
        answer = { error: {} };
      }
      answers.set(key, answer?.step ? answer : { error: answer?.error ?? {} });
      if (answers.size > KEPT) answers.delete(answers.keys().next().value);
      changed();
    }
    flying = false;
  }

  return {
    /** The answer for a key, or undefined; then it is asked for. */
    get(key, query) {
      if (answers.has(key)) {
        wanted = null;
        return answers.get(key);
      }
      wanted = { key, query };
      if (!flying) fly();
      return undefined;
    },
    /** Failed questions may be asked again. */
    forgive() {
      for (const [key, answer] of answers) if (answer.error) answers.delete(key);
    },
    clear() {
      answers.clear();
      wanted = null;
    },
  };
}
