// How the page looks: colours, the token view, and the drawers of a narrow window.

import { $ } from "/playground/dom.js";
import { keepSettings, settings } from "/playground/settings.js";

const THEMES = { system: "as the system", light: "light", dark: "dark" };
const DRAWERS = { chats: "show-chats", panel: "show-panel" };
const LIES_OVER = { chats: matchMedia("(max-width: 56rem)"), panel: matchMedia("(max-width: 75rem)") }; // as in style.css

export function setUpLooks({ onColours, onView }) {
  setUpTheme();
  setUpTokens(onColours, onView);
  for (const [id, opener] of Object.entries(DRAWERS)) {
    $(opener).addEventListener("click", () => toggle(id));
    $(id).querySelector(".close-drawer").addEventListener("click", () => close(id));
  }
  if (settings.panel === true && !LIES_OVER.panel.matches) set("panel", true);
  document.addEventListener("pointerdown", ({ target }) => { if (!target.closest(".drawer, .drawer-button, dialog")) closeDrawers(); });
  return { closeDrawers, toggle, focusIn };
}

function setUpTheme() {
  const theme = () => (Object.hasOwn(THEMES, settings.theme ?? "") ? settings.theme : "system");
  const show = () => {
    const name = theme();
    document.documentElement.dataset.theme = name;
    $("theme").setAttribute("aria-label", `Colours: ${THEMES[name]}`);
    $("theme").title = `Colours: ${THEMES[name]}`;
  };
  $("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    remember("theme", names[(names.indexOf(theme()) + 1) % names.length]);
    show();
  });
  show();
}

function setUpTokens(onColours, onView) {
  $("token-view").checked = Boolean(settings.tokenView);
  $("token-view").addEventListener("change", () => {
    remember("tokenView", $("token-view").checked);
    onView();
  });
  for (const key of ["origin", "source"]) $(`by-${key}`).addEventListener("click", () => { colourBy(key); onColours(); });
  colourBy("origin");
}

function colourBy(key) {
  for (const name of ["origin", "source"]) {
    $(`by-${name}`).setAttribute("aria-pressed", String(name === key));
    $("log").classList.toggle(`by-${name}`, name === key);
  }
}

function remember(name, value) {
  settings[name] = value;
  keepSettings();
}

function toggle(id) {
  const opened = !$(id).classList.contains("open");
  closeDrawers();
  if (!opened) return close(id);
  set(id, true);
  $(id).querySelector(".close-drawer").focus();
  return null;
}

function close(id) {
  if ($(id).contains(document.activeElement)) $(DRAWERS[id]).focus();
  set(id, false);
}

// Puts the focus on a part of a drawer, which is opened first where it lies over the page.
function focusIn(id, part) {
  if (LIES_OVER[id].matches && !$(id).classList.contains("open")) toggle(id);
  $(part).focus();
}

function set(id, opened) {
  $(id).classList.toggle("open", opened);
  $(DRAWERS[id]).setAttribute("aria-expanded", String(opened));
  if (id === "panel" && !LIES_OVER.panel.matches) remember("panel", opened);
}

// Closes those that lie over the page; whether one did.
function closeDrawers() {
  const opened = Object.keys(DRAWERS).filter((id) => LIES_OVER[id].matches && $(id).classList.contains("open"));
  opened.forEach(close);
  return opened.length > 0;
}
