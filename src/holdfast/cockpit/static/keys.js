// Keys: "/" searches, "g" and a letter goes to a page, "?" tells them, arrows walk the grid of nodes.
const pages = { o: "/", j: "/jobs", n: "/nodes", i: "/incidents", r: "/orders", e: "/efficiency", d: "/drills", a: "/audit", s: "/settings" };
let going = 0;

function isTyping(element) {
  return element.closest("input, textarea, select, [contenteditable]") !== null;
}

function walk(event) {
  const grid = document.getElementById("grid");
  const cell = event.target.closest("#grid a.c");
  if (!grid || !cell) return;
  const all = [...grid.querySelectorAll("a.c")];
  const at = all.indexOf(cell);
  let next = null;
  if (event.key === "ArrowRight") next = all[at + 1];
  else if (event.key === "ArrowLeft") next = all[at - 1];
  else if (event.key === "Home") next = all[0];
  else if (event.key === "End") next = all.at(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const here = cell.getBoundingClientRect();
    const below = event.key === "ArrowDown";
    let best = Infinity;
    for (const other of all) {
      const place = other.getBoundingClientRect();
      const dy = below ? place.top - here.top : here.top - place.top;
      if (dy < 2) continue;
      const far = dy * 1000 + Math.abs(place.left - here.left);
      if (far < best) { best = far; next = other; }
    }
  } else return;
  event.preventDefault();
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

export function start() {
  // One stop of the Tab key for the whole grid; arrows go on from there.
  document.querySelectorAll("#grid a.c").forEach((cell, number) => { cell.tabIndex = number ? -1 : 0; });
  const help = document.getElementById("help");
  const opener = document.getElementById("help-open");
  opener.hidden = false;
  opener.addEventListener("click", () => help.showModal());
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("holdfast-theme", root.dataset.theme); } catch { /* kept for this page only */ }
    dispatchEvent(new Event("holdfast-theme"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
    walk(event);
    if (event.defaultPrevented) return;
    if (Date.now() - going < 1500 && pages[event.key]) { going = 0; location.assign(pages[event.key]); }
    else if (event.key === "g") going = Date.now();
    else if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); }
    else if (event.key === "?" && !help.open) help.showModal();
  });
}
