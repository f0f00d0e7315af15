// The light or dark theme: the system's until the user chooses one. A classic script runs before the first paint.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function apply() {
    root.dataset.theme = localStorage.getItem("theme") ?? (system.matches ? "dark" : "light");
    const button = document.getElementById("theme");
    if (button) {
      const other = root.dataset.theme === "dark" ? "light" : "dark";
      button.setAttribute("aria-label", `Use the ${other} theme`);
      button.title = `Use the ${other} theme`;
    }
    document.dispatchEvent(new Event("themechange"));
  }

  function toggle() {
    localStorage.setItem("theme", root.dataset.theme === "dark" ? "light" : "dark");
    apply();
  }

  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", toggle);
    apply();
  });
  apply();
})();
