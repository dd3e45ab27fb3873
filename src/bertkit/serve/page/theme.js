// Before anything is painted: the colors that were chosen here last time. Without a choice the system's hold.

try {
  const chosen = localStorage.getItem("bertkit-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage is off: the system's colors
}
