// The hover card: one per stage, lines of text beside whatever is pointed at.
import { h } from "./dom.js";

export function tip(root) {
  const element = h("div.tip", { role: "tooltip", hidden: true });
  root.append(element);

  function hide() {
    element.hidden = true;
  }

  root.addEventListener("keydown", (event) => event.key === "Escape" && hide());

  /**
   * @param {string} title shown in the tokens' typeface
   * @param {[string, string][]} lines name and value
   * @param {{left: number, right: number, top: number, bottom: number}} anchor in the window
   */
  function show(title, lines, anchor) {
    element.replaceChildren(
      h("div.tip-title", {}, h("bdi", {}, title)),
      ...lines.map(([name, value]) =>
        h("div.tip-line", {}, h("span", {}, name), h("b", {}, value)),
      ),
    );
    element.hidden = false;
    const frame = root.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = element;
    const middle = (anchor.left + anchor.right) / 2 - frame.left;
    const left = Math.max(4, Math.min(middle - width / 2, frame.width - width - 4));
    const below = anchor.top < height + 12;
    const top = below ? anchor.bottom - frame.top + 8 : anchor.top - frame.top - height - 8;
    element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  return { show, hide };
}
