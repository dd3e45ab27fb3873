// Light or dark: the system's choice, until the button is pressed.

const KEY = "bertkit-theme"; // theme.js reads it before anything is painted
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** Make the button change the colors. */
export function startColors(button) {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : DARK.matches);
  const name = () => { button.textContent = isDark() ? "Light colors" : "Dark colors"; };
  button.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    name();
  };
  DARK.addEventListener("change", name);
  name();
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // storage is off: the choice holds until the page is closed
  }
}
