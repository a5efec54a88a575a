// How a column is told from the others: colour, dash and mark together, never colour alone.

export const LETTERS = ["A", "B", "C", "D", "E", "F"];
export const DASHES = ["solid", "8px,4px", "2px,3px", "10px,3px,2px,3px", "14px,5px", "5px,2px"];
export const MARKS = ["circle", "square", "diamond", "triangle-up", "x", "star"];

const SHAPES = {
  circle: "M17,2a4,4 0 1 1 -.01,0Z",
  square: "M13.5,2.5h7v7h-7Z",
  diamond: "M17,1l5,5l-5,5l-5,-5Z",
  "triangle-up": "M17,1l5,9h-10Z",
  x: "M13,3.5l1.5,-1.5l2.5,2.5l2.5,-2.5l1.5,1.5l-2.5,2.5l2.5,2.5l-1.5,1.5l-2.5,-2.5l-2.5,2.5l-1.5,-1.5l2.5,-2.5Z",
  star: "M17,0.5l1.5,3.6l3.9,0.3l-3,2.5l1,3.8l-3.4,-2.1l-3.4,2.1l1,-3.8l-3,-2.5l3.9,-0.3Z",
};

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** A piece of the column's line in the plots. */
export function swatch(place) {
  const dash = DASHES[place] === "solid" ? "none" : DASHES[place].replaceAll("px", "");
  const picture = svg("svg", { class: "swatch", viewBox: "0 0 34 12", "aria-hidden": "true" });
  picture.append(
    svg("path", { d: "M0,6H34", fill: "none", "stroke-width": 2, "stroke-dasharray": dash }),
    svg("path", { d: SHAPES[MARKS[place]], class: "mark" }),
  );
  return picture;
}

/** The columns' colours, as the style sheet has them for this theme. */
export function columnColours(root) {
  const style = getComputedStyle(root);
  return LETTERS.map((_, place) => style.getPropertyValue(`--column-${place}`).trim());
}
