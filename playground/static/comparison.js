// The tab "Compare": holds the columns, what has arrived of their runs and what the reader chose,
// and draws it at most once a frame.
import { board } from "./board.js";
import { numbers } from "./format.js";
import { partings, signs, verdict } from "./partings.js";
import { SETS, kindOf, settingsOf } from "./presets.js";
import { Run, effect } from "./run.js";
import { palette } from "./styles.js";
import { LETTERS, columnColours } from "./swatch.js";
import { words } from "./words.js";

const FIRST_LENGTH = 40; // new tokens at first: a column of them is seen without scrolling
const FIRST_SEED = 6; // the same for all columns: then only the settings differ

/**
 * @param {HTMLElement} root is filled
 * @param {object} options words, language; what there is: strategies, knobs, length, columns (least
 *     and most of each), prompts and notes by language; transport {look, steps, stop}; run(query): start
 * @returns {object} receive, settled, lost, setLanguage, repaint, state
 */
export function mount(root, options) {
  const { words: dictionaries, knobs, columns: bounds, transport } = options;
  let language = options.language;
  let serial = 0;
  let columns = [];
  let prompt = null; // null: the one that the page opens with, in the reader's language
  let length = FIRST_LENGTH;
  let set = null; // name of the set that the columns were made from
  let selected = null; // {id, index}
  let name = null; // of the comparison that runs or ran last
  let order = []; // ids of its columns
  let pending = false; // asked for, nothing has come yet
  let stopping = false; // Stop was pressed meanwhile
  let trouble = "";
  let colours = null;
  let hues = null;
  let parts = null;
  let frame = 0;
  const filling = new Set(); // runs whose missing steps are being asked for

  const running = () => pending || columns.some(({ run }) => run?.running);
  const column = (id) => columns.find((one) => one.id === id);
  const firstPrompt = () => options.prompts[language]?.[1] ?? options.prompts[language]?.[0] ?? "";

  function made(kind) {
    serial += 1;
    const taken = columns.map((one) => Number(one.settings.seed));
    const seed = kind === "seed" ? Math.max(0, ...taken.filter(Number.isFinite)) + 1 : FIRST_SEED;
    const settings = settingsOf(kind === "seed" ? "plain" : kind, knobs, seed);
    return { id: serial, wish: kind, settings, run: null, refused: "", measures: null };
  }

  function choose(kinds) {
    stop();
    columns = [];
    for (const kind of kinds) columns.push(made(kind));
    [selected, trouble, name, pending] = [null, "", null, false];
  }

  const actions = {
    changed,
    prompt: (text) => (prompt = text),
    length(value) {
      length = value;
      changed();
    },
    choose(next) {
      set = next;
      choose(SETS[next]);
      changed();
    },
    add(kind) {
      if (columns.length < bounds[1]) columns.push(made(kind));
      set = null;
      changed();
    },
    remove(id) {
      if (columns.length <= bounds[0]) return;
      const { run } = column(id);
      if (run?.running) transport.stop({ handle: run.handle });
      columns = columns.filter((one) => one.id !== id);
      if (selected?.id === id) selected = null;
      set = null;
      changed();
    },
    change(id, settings) {
      column(id).settings = settings;
      changed();
    },
    select(id, index) {
      selected = { id, index };
      changed();
    },
    close() {
      selected = null;
      changed();
    },
    go: () => (running() ? stop() : start()),
    look: (query) => transport.look(query),
  };

  function start() {
    name = crypto.randomUUID?.() ?? String(Math.random());
    order = columns.map(({ id }) => id);
    [pending, stopping, selected, trouble] = [true, false, null, ""];
    for (const one of columns) {
      Object.assign(one, { run: null, refused: "", measures: null, ran: one.settings });
    }
    options.run({
      comparison: name,
      prompt: prompt ?? firstPrompt(),
      max_new_tokens: length,
      columns: columns.map(({ settings }) => settings),
    });
    changed();
  }

  function stop() {
    stopping = true;
    for (const { run } of columns) if (run?.running) transport.stop({ handle: run.handle });
  }

  function receive(message) {
    if (message.comparison !== name) {
      for (const handle of message.columns ?? []) if (handle) halt(handle);
      return;
    }
    pending = false;
    if (message.error) trouble = message.error.text || parts.t("compare.failed");
    order.forEach((id, place) => take(column(id), place, message));
    changed();
  }

  // Messages of a comparison that is shown no longer: its runs are nobody's any more.
  const halted = new Set();
  function halt(handle) {
    if (halted.has(handle)) return;
    halted.add(handle);
    transport.stop({ handle });
  }

  /** What a message says of one column; the column may have been removed since. */
  function take(one, place, message) {
    const handle = message.columns?.[place];
    if (!one) return handle && halt(handle);
    if (message.refused?.[place]) one.refused = message.refused[place];
    if (message.error && one.run?.running) one.run.error = { text: "" };
    if (!handle) return undefined;
    if (!one.run) {
      one.run = new Run(handle);
      if (stopping) transport.stop({ handle });
    }
    const news = message.news?.[place];
    if (news) one.run.merge(news);
    if (message.waiting) one.run.waiting = message.waiting[place] ?? null;
    if (message.measures?.[place]) one.measures = message.measures[place];
    const end = message.finished?.[place];
    if (end) one.run.finished = end;
    // What an earlier message would have brought, had it not been lost, can be asked for.
    const late = end && one.run.length < end.steps;
    const begun = one.run.length > 0 || one.run.arrived.length > 0 || end;
    if (late || one.run.gap() != null || (begun && !one.run.started)) fill(one.run);
    return undefined;
  }

  async function fill(run) {
    if (filling.has(run)) return;
    filling.add(run);
    const answer = await transport.steps({ handle: run.handle, from: run.started ? run.length : 0 });
    if (answer?.error) trouble = answer.error.text ?? "";
    else if (answer) run.merge({ ...answer, finished: run.finished ?? undefined });
    filling.delete(run);
    if (!answer?.error && run.gap() != null) fill(run);
    changed();
  }

  /** No event that started columns is under way any more, however they ended. */
  function settled() {
    if (pending) trouble ||= parts.t("compare.failed");
    pending = false;
    changed();
  }

  /** The server does not answer: what was written stays. */
  function lost(text) {
    for (const { run } of columns) if (run?.running) run.error = { text };
    if (pending || !columns.some(({ run }) => run)) trouble = text;
    pending = false;
    changed();
  }

  const started = () => pending || columns.some(({ run, refused }) => run || refused);

  /** Columns as they are drawn: with their letters, names and where they part. */
  function named() {
    const { t } = parts;
    return columns.map((one, place) => {
      const letter = LETTERS[place];
      const kind = kindOf(one.settings, one.wish, knobs);
      const said = t(`compare.kind_${kind}`, { seed: one.settings.seed });
      return { ...one, place, letter, kind: said, title: t("compare.name", { letter, kind: said }) };
    });
  }

  function parting(view, place, found) {
    const { t, n } = parts;
    const { reference, at, same } = found;
    const { run } = view[place];
    if (!run || reference < 0) return null;
    if (place === reference) return { at: null, text: t("compare.reference") };
    const other = view[reference].letter;
    if (at[place] == null) {
      if (!same[place]) return null;
      const going = run.running || view[reference].run.running;
      return { at: null, text: t(going ? "compare.same_so_far" : "compare.same", { name: other }) };
    }
    const index = at[place];
    const values = {
      index: n.count(index + 1),
      label: run.step(index).label,
      other: view[reference].run.step(index).label,
      name: other,
    };
    return { at: index, text: t("compare.parts_here", values) };
  }

  const stale = ({ settings, ran, run }) =>
    Boolean(run) &&
    (effect(settings) !== effect(ran) ||
      (settings.strategy !== "greedy" && settings.seed !== ran.seed));

  function draw() {
    const { t, n } = parts;
    if (selected && !column(selected.id)?.run?.step(selected.index)) selected = null;
    colours ??= palette(root);
    hues ??= columnColours(root);
    const view = named();
    const found = partings(view.map(({ run }) => (run?.length ? run : null)));
    const marks = signs(found, view.map(({ letter }) => letter), t);
    const say = verdict(found, view, { t, n, running: running() });
    const lengths = view.map(({ run }) => run?.length ?? 0);
    const places = found.at.filter((index) => index != null);
    const limit = view.find(({ run }) => run?.started)?.run.started.max_new_tokens ?? length;
    const chosen = selected && view.find(({ id }) => id === selected.id);
    const beside =
      chosen && chosen.place !== found.reference && found.same[chosen.place] >= selected.index;
    const other = beside ? view[found.reference] : null;
    parts.draw({
      started: started(),
      running: running(),
      trouble,
      prompt: prompt ?? firstPrompt(),
      prompts: options.prompts[language] ?? [],
      note: options.notes[language] ?? "",
      length,
      set,
      full: columns.length >= bounds[1],
      verdict: say,
      columns: view.map((one, place) => ({
        column: one,
        ...one,
        pending,
        marks: marks[place],
        parting: parting(view, place, found),
        selected: selected?.id === one.id ? selected.index : null,
        stale: stale(one),
        removable: columns.length > bounds[0],
        theme: theme(),
      })),
      closeup: chosen && {
        column: chosen,
        index: selected.index,
        beside: other?.run.step(selected.index) ? other : null,
        colours,
      },
      courses: {
        columns: view,
        span: Math.max(1, running() ? limit : 0, ...lengths),
        agreed: places.length ? Math.min(...places) : 0,
        selected: selected?.index ?? null,
        colours,
        hues,
      },
    });
  }

  const theme = () => (document.body.classList.contains("dark") ? "dark" : "light");

  function changed() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }

  /** Colours and sizes may be others now. */
  function repaint() {
    [colours, hues] = [null, null];
    changed();
  }

  function setLanguage(next) {
    language = next;
    root.lang = next;
    parts?.destroy();
    const t = words(dictionaries, next);
    // Names of settings and controls stand outside the stage's own words.
    const whole = Object.fromEntries(
      Object.entries(dictionaries).map(([code, all]) => [code, { stage: all }]),
    );
    const tools = { t, n: numbers(next, t), page: words(whole, next) };
    parts = { ...board(root, { ...options, ...tools, actions }), ...tools };
    changed();
  }

  set = Object.keys(SETS)[0];
  choose(SETS[set]);
  setLanguage(language);
  new ResizeObserver(changed).observe(root);

  return {
    receive,
    settled,
    lost,
    repaint,
    setLanguage,
    running,
    /** For tests and links: what is on the board, as plain data. */
    state: () => ({
      comparison: name,
      running: running(),
      trouble,
      selected,
      set,
      columns: columns.map(({ settings, run, refused, measures: numbers_ }) => ({
        settings,
        refused,
        measures: numbers_,
        handle: run?.handle ?? null,
        steps: run?.length ?? 0,
        ids: run?.steps.map((step) => step.id) ?? [],
        text: run?.text ?? "",
        reason: run?.finished?.reason ?? null,
        error: run?.error?.text ?? null,
        seed: run?.started?.seed ?? null,
      })),
      parted: partings(columns.map(({ run }) => (run?.length ? run : null))).at,
    }),
  };
}
