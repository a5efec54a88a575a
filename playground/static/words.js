// Words by language, from locales/*.json; the stage's own stand there under "stage".

/**
 * @param {Object<string, object>} dictionaries by language, each nested objects of strings
 * @param {string} language "en" or "tr"
 * @returns {(key: string, values?: object) => string} t("ruler.title", {name: value}); an unknown
 *     key falls back to English, then to the key itself, so that a missing word is seen, not blank
 */
export function words(dictionaries, language) {
  const own = section(dictionaries[language]);
  const english = section(dictionaries.en);
  return (key, values = {}) => {
    const text = lookup(own, key) ?? lookup(english, key) ?? key;
    return text.replace(/\{(\w+)\}/g, (whole, name) =>
      Object.hasOwn(values, name) ? String(values[name]) : whole,
    );
  };
}

function section(dictionary) {
  return dictionary?.stage ?? dictionary ?? {};
}

function lookup(dictionary, key) {
  const found = key.split(".").reduce((node, part) => node?.[part], dictionary);
  return typeof found === "string" ? found : undefined;
}
