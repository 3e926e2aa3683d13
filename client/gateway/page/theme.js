// Light or dark: as the system has it, unless the reader chose. Runs before the first paint, so it is not a module.
"use strict";
{
  const root = document.documentElement,
    dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("helm.theme");
    } catch {
      return null;
    }
  };
  const apply = (theme) => {
    root.dataset.theme = theme ?? (dark.matches ? "dark" : "light");
  };
  let chosen = ["dark", "light"].includes(kept()) ? kept() : null;
  apply(chosen);
  dark.addEventListener("change", () => apply(chosen));
  addEventListener("storage", (event) => {
    if (event.key === "helm.theme") apply((chosen = event.newValue || null));
  });
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      if (chosen === (dark.matches ? "dark" : "light")) chosen = null; // the system's again: follow it
      try {
        if (chosen) localStorage.setItem("helm.theme", chosen);
        else localStorage.removeItem("helm.theme");
      } catch {
        /* then it holds for this tab */
      }
      apply(chosen);
    });
  });
}
