// Elements without a framework. Text reaches the page by textContent alone, never as HTML.

/**
 * @param {string} name tag, with classes after dots: "button.quiet"
 * @param {object} [properties] attributes; functions become event listeners, null is left out
 * @param {...(Node|string|null)} children
 */
export function h(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** Writes only what changed, so that screen readers and layout are left in peace. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows or hides while the place stays reserved: nothing around it moves. */
export function reveal(node, shown) {
  node.style.visibility = shown ? "visible" : "hidden";
}

/** Cuts in the middle, where tokens differ least; whole code points. */
export function middle(text, limit) {
  const letters = [...text];
  if (letters.length <= limit) return text;
  const head = Math.ceil((limit - 1) / 2);
  return `${letters.slice(0, head).join("")}…${letters.slice(head + 1 - limit).join("")}`;
}

/** Open or closed, remembered between visits where the browser allows it. */
export function remembered(details, key) {
  try {
    details.open = localStorage.getItem(key) === "open";
  } catch {
    // Private windows may forbid storage; then it is simply closed at first.
  }
  details.addEventListener("toggle", () => {
    try {
      localStorage.setItem(key, details.open ? "open" : "closed");
    } catch {
      // As above.
    }
  });
}
