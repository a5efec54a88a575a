// The reader's language, for parts of the page that stand by themselves.

/** "en" or "tr", as the page's head has settled it. */
export function language() {
  return window.playgroundChosen ?? document.documentElement.lang ?? "en";
}

/** Calls `changed` whenever the reader chooses another language. */
export function onLanguage(changed) {
  const seen = new MutationObserver(() => changed(language()));
  seen.observe(document.documentElement, { attributes: true, attributeFilter: ["lang"] });
}

let asked = null;

/** All words, fetched once for the whole page. @param {string} files where the page's files are */
export function dictionaries(files) {
  asked ??= fetch(`${files}words.json`).then((answer) => answer.json());
  return asked;
}

/** One section of the words in every language, for `words()`. */
export function section(all, name) {
  return Object.fromEntries(Object.entries(all).map(([code, texts]) => [code, texts[name]]));
}
