// Light or dark: the system's setting, until the button is pressed.

const STORAGE_KEY = "bertkit-theme"; // theme.js reads it before the first paint
const SYSTEM_DARK = matchMedia("(prefers-color-scheme: dark)");

/** Make the button change the colors. */
export function startColors(button) {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : SYSTEM_DARK.matches);
  const label = () => { button.textContent = isDark() ? "Light mode" : "Dark mode"; };
  button.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    label();
  };
  SYSTEM_DARK.addEventListener("change", label);
  label();
}

function remember(theme) {
  try {
    localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // no storage: the choice holds until the page is closed
  }
}
