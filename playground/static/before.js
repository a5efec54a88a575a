// Runs in the page's head, before gradio draws anything.
window.playgroundLanguage = (forced) => {
  let kept = null;
  try { kept = localStorage.getItem("playground-language"); } catch { /* private mode */ }
  const browser = (navigator.language || "en").toLowerCase().startsWith("tr") ? "tr" : "en";
  const language = forced ?? kept ?? browser;
  document.documentElement.lang = language;
  window.playground?.language(language);
  window.playgroundChosen = language;
  return language;
};
window.playgroundLanguageChosen = (language) => {
  try { localStorage.setItem("playground-language", language); } catch { /* private mode */ }
  document.documentElement.lang = language;
  window.playgroundChosen = language;
  window.playground?.language(language);
};
// The theme last chosen here, else the system's, which gradio follows by itself.
try {
  const theme = localStorage.getItem("playground-theme");
  if (theme) {
    const set = () => document.body?.classList.toggle("dark", theme === "dark");
    document.addEventListener("DOMContentLoaded", () => {
      set();
      const seen = new MutationObserver(() => {
        if (document.body.classList.contains("dark") !== (theme === "dark") && !window.playgroundThemed) set();
      });
      seen.observe(document.body, { attributes: true, attributeFilter: ["class"] });
      setTimeout(() => seen.disconnect(), 5000);
    });
  }
} catch { /* private mode */ }
