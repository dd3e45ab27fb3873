// Before the first paint: the colors that were chosen last time; by default the system's.

try {
  const chosen = localStorage.getItem("bertkit-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // no storage: the system's colors
}
