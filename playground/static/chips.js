// The text as token chips: prompt plain, new tokens coloured, a listbox with one tab stop.
import { MEASURES, shade } from "./colour.js";
import { h, reveal, say } from "./dom.js";

const PROMPT_SHOWN = 300; // of a longer prompt only the end, until asked
const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/g;
const LTR = /[A-Za-z\u00c0-\u02b8\u0370-\u058f]/g;
const INVISIBLE = /^[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Mn}\u2028\u2029]+$/u;

let serial = 0;

/** Running text stays readable; line ends are seen and really break. */
function write(node, { text, label, special }) {
  const visible = text.replace(/[\n\r\t ]/g, "");
  let body = h("span.body");
  if (special || text === "" || (visible && INVISIBLE.test(visible))) {
    body.classList.add("capsule");
    body.textContent = label;
    node.append(body);
    return;
  }
  if (!visible && !text.includes("\n")) {
    body.append(h("span.blank", {}, "·".repeat(text.length)));
    node.append(body);
    return;
  }
  // Spaces at the start stay outside the coloured body: they part the words, and where a line
  // wraps there they vanish instead of leaving a coloured sliver.
  const [lead] = text.match(/^ */);
  node.append(lead, body);
  text
    .slice(lead.length)
    .split("\n")
    .forEach((line, i) => {
      if (i > 0) {
        body.append(h("span.line-end", { "aria-hidden": "true" }, "↵"));
        body = h("span.body");
        node.append(h("br"), body);
      }
      body.append(line);
    });
  if (!body.textContent) body.remove();
}

/**
 * @param {object} options t, n, tip, select(index); empty: key of the invitation;
 *     prompted: whether the prompt stands before the new tokens
 */
export function chips({ t, n, tip, select, empty = "text.empty", prompted = true }) {
  const prefix = `stage-${(serial += 1)}-`;
  const prompt = h("span.prompt", { role: "group", "aria-label": t("text.prompt") });
  const list = h("span.new", {
    role: "listbox",
    "aria-label": t("text.new"),
    "aria-orientation": "horizontal",
  });
  const invitation = h("p.invitation", {}, t(empty));
  const flow = h("div.flow", {}, invitation, prompt, list);
  const drawn = { run: null, version: 0, length: 0, look: "", selected: null, prompt: null };
  let steps = [];
  let measure = "probability";
  let theme = "light";

  const chipAt = (index) => list.children[index];

  function paint(node, step) {
    const { background, ink } = shade(MEASURES[measure](step), theme);
    for (const body of node.querySelectorAll(".body")) {
      body.style.backgroundColor = background;
      body.style.color = ink;
    }
  }

  function chip(step) {
    const node = h("span.chip", {
      role: "option",
      id: `${prefix}${step.index}`,
      "data-index": step.index,
      "aria-selected": "false",
      "aria-label": [step.label, n.probability(step.raw)]
        .concat(step.forced ? t("text.forced") : [])
        .join(", "),
      tabindex: "-1",
    });
    write(node, step);
    node.classList.toggle("forced", step.forced);
    paint(node, step);
    return node;
  }

  function drawPrompt(tokens) {
    drawn.prompt = tokens;
    prompt.replaceChildren();
    const plain = (token) => {
      const node = h("span.plain");
      write(node, token);
      return node;
    };
    const hidden = Math.max(0, tokens.length - PROMPT_SHOWN);
    if (hidden) {
      const more = h(
        "button.link",
        { type: "button", click: () => more.replaceWith(...tokens.slice(0, hidden).map(plain)) },
        t("text.earlier_prompt", { count: n.count(hidden) }),
      );
      prompt.append(more);
    }
    prompt.append(...tokens.slice(hidden).map(plain));
  }

  /** The side from which most letters are written. */
  function direction(texts) {
    const text = texts.join("");
    return (text.match(RTL)?.length ?? 0) > (text.match(LTR)?.length ?? 0) ? "rtl" : "ltr";
  }

  function mark(index, follow) {
    const before = drawn.selected == null ? null : chipAt(drawn.selected);
    if (before) {
      before.setAttribute("aria-selected", "false");
      before.tabIndex = -1;
    }
    drawn.selected = index;
    const node = index == null ? null : chipAt(index);
    if (!node) {
      if (follow) flow.scrollTop = flow.scrollHeight;
      return;
    }
    node.setAttribute("aria-selected", "true");
    node.tabIndex = 0;
    if (follow) flow.scrollTop = flow.scrollHeight;
    else if (index != null) keepInView(node);
  }

  function keepInView(node) {
    const [inner, outer] = [node.getBoundingClientRect(), flow.getBoundingClientRect()];
    if (inner.top < outer.top) flow.scrollTop -= outer.top - inner.top + 8;
    if (inner.bottom > outer.bottom) flow.scrollTop += inner.bottom - outer.bottom + 8;
  }

  /** Signs at some tokens: what is said there, by index. */
  function sign(marks) {
    for (const node of list.querySelectorAll(".signed")) {
      if (marks?.has(Number(node.dataset.index))) continue;
      node.classList.remove("signed");
      node.removeAttribute("aria-description");
    }
    for (const [index, { text, meaning }] of marks ?? []) {
      const node = chipAt(index);
      if (!node) continue;
      node.classList.add("signed");
      node.setAttribute("aria-description", meaning);
      node.querySelector(".body").dataset.sign = text;
    }
  }

  /** Draws what is new; everything afresh only where an earlier token changed. */
  function draw({ run, selected, following, colourBy, theme: wanted, marks }) {
    invitation.hidden = Boolean(run);
    steps = run?.steps ?? [];
    const tokens = (prompted && run?.started?.prompt) || [];
    if (drawn.prompt !== tokens) drawPrompt(tokens);
    if (drawn.run !== run || drawn.version !== (run?.version ?? 0)) {
      list.replaceChildren();
      Object.assign(drawn, { run, version: run?.version ?? 0, length: 0, selected: null });
      flow.scrollTop = 0;
    }
    const look = `${colourBy} ${wanted}`;
    [measure, theme] = [colourBy, wanted];
    if (drawn.look !== look) {
      drawn.look = look;
      [...list.children].forEach((node, i) => paint(node, steps[i]));
    }
    const grown = steps.length > drawn.length;
    if (grown) {
      list.append(...steps.slice(drawn.length).map(chip));
      drawn.length = steps.length;
      flow.dir = direction([...tokens, ...steps].map((token) => token.text));
    }
    if (drawn.selected !== selected || (grown && following)) mark(selected, following);
    if (drawn.selected == null && list.firstChild) list.firstChild.tabIndex = 0;
    sign(marks);
  }

  function numbersOf(step) {
    const lines = [
      [t("word.raw"), n.probability(step.raw)],
      [t("word.final"), n.probability(step.final)],
      [t("word.rank"), n.count(step.rank)],
    ];
    if (step.draw != null) lines.push([t("word.draw"), n.unit(step.draw)]);
    lines.push([t("word.time"), n.ms(step.ms)]);
    if (step.forced) lines.push([t("text.forced"), "✎"]);
    return lines;
  }

  function explain(event) {
    const node = event.target.closest?.(".chip");
    const step = node && steps[Number(node.dataset.index)];
    if (!step) return tip.hide();
    const boxes = [...node.getClientRects()];
    const box = boxes.find((one) => event.clientY >= one.top && event.clientY <= one.bottom);
    return tip.show(step.label, numbersOf(step), box ?? boxes[0]);
  }

  /** The chip nearest above or below, by where the chips really stand. */
  function vertical(from, sign) {
    const here = chipAt(from)?.getBoundingClientRect();
    if (!here) return from;
    let best = { index: from, far: Infinity };
    [...list.children].forEach((node, index) => {
      const box = node.getClientRects()[0];
      const down = (box.top - here.top) * sign;
      const far = down * 4 + Math.abs(box.left - here.left);
      if (down > here.height / 3 && far < best.far) best = { index, far };
    });
    return best.index;
  }

  function key(event) {
    const from = drawn.selected ?? Number(event.target.dataset.index ?? steps.length - 1);
    const ahead = flow.dir === "rtl" ? -1 : 1;
    const to = {
      ArrowRight: () => from + ahead,
      ArrowLeft: () => from - ahead,
      ArrowDown: () => vertical(from, 1),
      ArrowUp: () => vertical(from, -1),
      Home: () => 0,
      End: () => steps.length - 1,
    }[event.key]?.();
    if (to == null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(steps.length - 1, to));
    select(index);
    mark(index, false);
    chipAt(index)?.focus({ preventScroll: true });
  }

  list.addEventListener("click", (event) => {
    const node = event.target.closest(".chip");
    if (node) select(Number(node.dataset.index));
  });
  list.addEventListener("keydown", key);
  list.addEventListener("pointerover", explain);
  list.addEventListener("pointerleave", tip.hide);
  list.addEventListener("focusin", explain);
  list.addEventListener("focusout", tip.hide);
  flow.addEventListener("scroll", tip.hide, { passive: true });

  return { element: flow, draw };
}

/** The legend of the chips' colours. */
export function legend({ t, n }) {
  const bar = h("span.legend-bar", { "aria-hidden": "true" });
  const [name, low, high] = [h("span"), h("span"), h("span")];
  const element = h("div.legend", {}, name, h("span.legend-scale", {}, low, bar, high));

  function draw({ colourBy, theme, shown }) {
    reveal(element, shown);
    const stops = [0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => shade(share, theme).background);
    bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
    say(name, t(`legend.${colourBy}`));
    const ends = {
      probability: [n.share(0), n.share(1)],
      rank: [t("legend.or_more", { count: n.count(1000) }), n.count(1)],
      entropy: [t("legend.or_more", { count: n.count(3000) }), n.count(1)],
      surprise: [t("legend.bits", { count: n.count(12) }), t("legend.bits", { count: n.count(0) })],
    }[colourBy];
    say(low, ends[0]);
    say(high, ends[1]);
  }

  return { element, draw };
}
