// What the tabs have in common in dealing with the server.

/** Without news for so long, a page on which something runs asks whether anyone is there. */
export const QUIET_MS = 3000;

/** Whether anyone is there. @param {string} files where the page's own files are */
export function alive(files) {
  return fetch(`${files}words.json`, { method: "HEAD", cache: "no-store" }).then(
    (answer) => answer.ok,
    () => false,
  );
}

let loading = null;

/** Loads plotly once for all tabs. */
export function plotly(files) {
  if (window.Plotly) return Promise.resolve();
  loading ??= new Promise((resolve, reject) => {
    const source = `${files}plotly.js`;
    const made = { src: source, onload: resolve, onerror: reject };
    document.head.append(Object.assign(document.createElement("script"), made));
  });
  return loading;
}
