// Moving over the steps: a native range, previous and next, and a way back to the newest.
import { h, reveal, say } from "./dom.js";

export function scrubber({ t, n, select, follow }) {
  let at = null;
  let length = 0;
  const go = (index) => select(Math.max(0, Math.min(length - 1, index)));
  const range = h("input", {
    type: "range",
    min: 1,
    max: 1,
    value: 1,
    "aria-label": t("scrubber.label"),
    input: () => go(Number(range.value) - 1),
  });
  const previous = h("button.icon", { type: "button", click: () => go(at - 1) });
  const next = h("button.icon", { type: "button", click: () => go(at + 1) });
  for (const [button, key, sign] of [
    [previous, "previous", "‹"],
    [next, "next", "›"],
  ]) {
    button.setAttribute("aria-label", t(`scrubber.${key}`));
    button.title = t(`scrubber.${key}`);
    button.textContent = sign;
  }
  const place = h("span.place");
  const newest = h("button.quiet", { type: "button", click: follow }, t("scrubber.follow"));
  const element = h("div.scrubber", {}, previous, range, next, h("div.where", {}, place, newest));

  function draw({ selected, count, following, running }) {
    [at, length] = [selected ?? 0, count];
    const empty = count === 0;
    range.disabled = empty;
    range.max = Math.max(1, count);
    range.value = at + 1;
    previous.disabled = empty || at <= 0;
    next.disabled = empty || at >= count - 1;
    const text = empty
      ? ""
      : t("scrubber.place", { index: n.count(at + 1), count: n.count(count) });
    say(place, text);
    range.setAttribute("aria-valuetext", text);
    reveal(newest, running && !following && !empty);
  }

  return { element, draw };
}
