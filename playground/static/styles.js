// The style sheet and what drawings need to know of it.

/** Colours and typefaces of the page, read from the style sheet's own variables. */
export function palette(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: read("ink"),
    soft: read("ink-soft"),
    line: read("line"),
    paper: read("paper"),
    final: read("final"),
    raw: read("raw"),
    cut: read("cut"),
    cutBack: read("cut-back"),
    tally: read("tally"),
    select: read("select"),
    font: read("font"),
  };
}

/** A style sheet beside this module; calls `ready` once it is loaded (or can't be). */
export function linkStyles(ready, name = "./stage.css") {
  const href = new URL(name, import.meta.url).href;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) {
    ready();
    return;
  }
  const link = document.createElement("link");
  Object.assign(link, { rel: "stylesheet", href, onload: ready, onerror: ready });
  document.head.append(link);
}
